package edge

import (
	"errors"
	"fmt"
	"io"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"pipeline/gateway/internal/codec"
	"pipeline/gateway/pipelinepb"
)

// answerBytes is room for an answer without tensors.
const answerBytes = 256

var errHandedOver = errors.New("the backend's HTTP door is to judge")

// marshaler is proto3 JSON as the door has it: original field names, defaults written, unknown
// fields ignored, and nothing behind the object.
type marshaler struct {
	write protojson.MarshalOptions
	read  protojson.UnmarshalOptions
	most  int // bytes of an answer
}

func newMarshaler(most int64) *marshaler {
	return &marshaler{
		most:  int(most),
		write: protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true},
		read:  protojson.UnmarshalOptions{DiscardUnknown: true},
	}
}

// ContentType is the same for every message.
func (*marshaler) ContentType(any) string { return JSONType }

// Marshal returns the JSON object of a message.
func (m *marshaler) Marshal(value any) ([]byte, error) {
	switch message := value.(type) {
	case *pipelinepb.Response:
		size := proto.Size(message)
		text := codec.AppendResponse(make([]byte, 0, answerBytes+size+size/8), message)
		if len(text) > m.most {
			return answerTooLong(m.most).Body(), nil
		}
		return text, nil
	case proto.Message:
		return m.write.Marshal(message)
	}
	return nil, fmt.Errorf("%T is not a protobuf message, as every answer is", value)
}

// Unmarshal reads the JSON object of a message, all of data.
func (m *marshaler) Unmarshal(data []byte, value any) error {
	message, ok := value.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message, as every request is", value)
	}
	return m.read.Unmarshal(data, message)
}

// NewEncoder is for streams of messages.
func (m *marshaler) NewEncoder(writer io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(value any) error {
		data, err := m.Marshal(value)
		if err != nil {
			return err
		}
		_, err = writer.Write(data)
		return err
	})
}

// NewDecoder reads the body of a request. That of a *call is there already, and is not copied.
func (m *marshaler) NewDecoder(reader io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(value any) error {
		asked, ok := reader.(*call)
		if !ok {
			data, err := io.ReadAll(reader)
			if err != nil {
				return fmt.Errorf("read the body: %w", err)
			}
			return m.Unmarshal(data, value)
		}
		return m.decode(asked, value)
	})
}

// decode reads the request of a call. What the door may take, or refuse in words of its own, is
// for the door to judge.
func (m *marshaler) decode(asked *call, value any) error {
	if len(asked.plain) == 0 { // an empty body is an empty request
		return nil
	}
	request, isRequest := value.(*pipelinepb.Request)
	if isRequest && codec.ReadPlain(asked.plain, request) {
		return nil
	}
	if codec.IsOdd(asked.plain) {
		text := "the request has a number that no double can hold, one with an empty exponent, or more than %d levels"
		asked.fallback = &fallback{"json", badRequest(text, codec.MaxDepth)}
		return errHandedOver
	}
	if err := m.Unmarshal(asked.plain, value); err != nil {
		asked.fallback = &fallback{"json", badRequest("the request does not fit its message: %v", err)}
		return errHandedOver
	}
	if isRequest && len(request.Key)+len(request.Value)+len(request.Tensors) == 0 {
		if text := codec.NoData(asked.plain); text != "" {
			asked.fallback = &fallback{"json", badRequest("%s", text)}
			return errHandedOver
		}
	}
	return nil
}
