package grpcedge

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// asked is a message of a caller, as it came.
type asked struct{ buffer mem.Buffer }

func (a *asked) data() []byte { return a.buffer.ReadOnlyData() }

// free gives the memory back, which nobody may read any more.
func (a *asked) free() {
	if a.buffer != nil {
		a.buffer.Free()
		a.buffer = nil
	}
}

// answer is a message for a caller; gRPC frees it when it is written.
type answer struct{ buffer mem.Buffer }

// rawCodec leaves the messages of calls as they are; those of health and reflection are protobuf.
type rawCodec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return rawCodec{encoding.GetCodecV2(proto.Name)} }

func (c rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	if raw, ok := message.(*answer); ok {
		return mem.BufferSlice{raw.buffer}, nil
	}
	return c.CodecV2.Marshal(message)
}

func (c rawCodec) Unmarshal(data mem.BufferSlice, message any) error {
	if raw, ok := message.(*asked); ok {
		raw.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, message)
}
