package grpcedge

import (
	"encoding/binary"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"pipeline/gateway/internal/arena"
	"pipeline/gateway/internal/link"
	"pipeline/gateway/pipelinepb"
)

const (
	longBytes  = 64 << 10 // of a message that is received into the server's memory
	fieldBytes = 4 << 10  // of a field that is to be aligned
)

// asked is a message of a caller, as it came.
type asked struct {
	client *link.Client // of the server that is asked first; nil: it is kept here
	method string
	buffer mem.Buffer   // nil: it is in a block
	block  *arena.Block // of the server's memory
}

func (a *asked) data() []byte {
	if a.block != nil {
		return a.block.Data
	}
	return a.buffer.ReadOnlyData()
}

// free gives the memory back, which nobody may read any more.
func (a *asked) free() {
	if a.buffer != nil {
		a.buffer.Free()
		a.buffer = nil
	}
	a.block.Release()
	a.block = nil
}

// take keeps what has come: a long message where the server can read it.
func (a *asked) take(data mem.BufferSlice) {
	if size := data.Len(); size > longBytes && a.client != nil {
		if a.block = a.client.Place(size, leadOf(data, a.method == pipelinepb.PipelineService_Inference_FullMethodName)); a.block != nil {
			data.CopyTo(a.block.Data)
			return
		}
	}
	a.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
}

// leadOf returns how many bytes precede the first long field, which is taken for the data of a tensor. With
// `isNested`
// the first long field is a message, and the one that counts is in it. It is 0 where none is found.
func leadOf(data mem.BufferSlice, isNested bool) int {
	source := data.Reader()
	defer source.Close()
	size := data.Len()
	at := func() int { return size - source.Remaining() }
	for source.Remaining() > 0 {
		tag, err := binary.ReadUvarint(source)
		if err != nil {
			return 0
		}
		skip := 0
		switch tag & 7 {
		case 0:
			_, err = binary.ReadUvarint(source)
		case 1:
			skip = 8
		case 5:
			skip = 4
		case 2:
			var length uint64
			if length, err = binary.ReadUvarint(source); err != nil || length > uint64(source.Remaining()) {
				return 0
			}
			if skip = int(length); skip < fieldBytes {
				break
			}
			if !isNested {
				return at()
			}
			isNested, skip = false, 0 // continue in it
		default:
			return 0
		}
		if err == nil {
			_, err = source.Discard(skip)
		}
		if err != nil {
			return 0
		}
	}
	return 0
}

// answer is a message for a caller; gRPC frees it when it is written.
type answer struct{ pieces mem.BufferSlice }

// rawCodec does not change the messages of calls; messages of health and reflection are protobuf.
type rawCodec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return rawCodec{encoding.GetCodecV2(proto.Name)} }

func (c rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	if raw, ok := message.(*answer); ok {
		return raw.pieces, nil
	}
	return c.CodecV2.Marshal(message)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, message any) error {
	if raw, ok := message.(*asked); ok {
		raw.take(data)
		return nil
	}
	return c.CodecV2.Unmarshal(data, message)
}
