package grpcedge

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// field adds a field of bytes.
func field(data []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(data, number, protowire.BytesType), value)
}

// scalars are fields of every other kind.
func scalars() []byte {
	data := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1<<40)
	data = protowire.AppendFixed32(protowire.AppendTag(data, 2, protowire.Fixed32Type), 7)
	return protowire.AppendFixed64(protowire.AppendTag(data, 3, protowire.Fixed64Type), 7)
}

// cut is a message in buffers of so many bytes.
func cut(data []byte, size int) (pieces mem.BufferSlice) {
	for len(data) > 0 {
		most := min(size, len(data))
		pieces = append(pieces, mem.SliceBuffer(data[:most]))
		data = data[most:]
	}
	return pieces
}

func TestTheLeadEndsWhereTheFirstLongFieldBegins(t *testing.T) {
	long, tensor := bytes.Repeat([]byte{0xff}, fieldBytes), []byte("tensor")
	short := long[:fieldBytes-1]
	inner := append(scalars(), field(nil, 9, long)...)
	for _, test := range []struct {
		name     string
		data     []byte
		isNested bool
		want     int
	}{
		{"nothing", nil, false, 0},
		{"only short fields", field(scalars(), 4, short), false, 0},
		{"the first field", field(nil, 7, long), false, 1 + 2},
		{"behind others", field(field(scalars(), 4, tensor), 7, long), false, len(scalars()) + 2 + len(tensor) + 1 + 2},
		{"the first of two", field(field(nil, 7, long), 7, long), false, 1 + 2},
		{"within a field", field(field(nil, 1, tensor), 2, inner), true, 2 + len(tensor) + 1 + 2 + len(scalars()) + 1 + 2},
		{"within a field that has only short ones", field(nil, 2, field(field(nil, 1, short[:3000]), 2, short[:3000])), true, 0},
		{"a length that there is not", field(nil, 7, long)[:fieldBytes], false, 0},
		{"a varint that ends nowhere", long, false, 0},
		{"a group", field(protowire.AppendTag(nil, 1, protowire.StartGroupType), 7, long), false, 0},
		{"half a number", protowire.AppendTag(nil, 1, protowire.Fixed64Type), false, 0},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			if got := leadOf(cut(test.data, size), test.isNested); got != test.want {
				t.Errorf("%s, in pieces of %d: %d, not %d", test.name, size, got, test.want)
			}
		}
	}
}

func TestALongMessageStaysHereIfNoServerSharesMemory(t *testing.T) {
	data := bytes.Repeat([]byte("x"), longBytes+1)
	message := asked{}
	message.take(cut(data, 1000))
	defer message.free()
	if message.block != nil || !bytes.Equal(message.data(), data) {
		t.Errorf("%v, %d bytes", message.block, len(message.data()))
	}
}
