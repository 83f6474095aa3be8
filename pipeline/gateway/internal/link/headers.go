package link

import (
	"encoding/binary"
	"fmt"
	"net/http"

	"pipeline/gateway/internal/failure"
	"pipeline/gateway/internal/link/frame"
)

// headerField returns the headers of a request as an ASK has them, for a server that forwards some to its
// hooks: u16 size of what follows, and of each its name, a line's end, its value, a line's end. They are those
// that the server's HTTP port would be told; which of them hooks see is the server's to choose. Its error is a
// *failure.Error.
func headerField(told http.Header) ([]byte, error) {
	field := make([]byte, 2, 1<<10)
	for name, values := range told {
		for _, value := range values {
			field = append(append(append(append(field, name...), '\n'), value...), '\n')
		}
	}
	size := len(field) - 2
	if size > frame.MostFieldBytes {
		text := fmt.Sprintf("the request's headers have %d bytes, and a link takes %d", size, frame.MostFieldBytes)
		return nil, &failure.Error{Status: http.StatusRequestHeaderFieldsTooLarge, ErrNo: failure.CodePackage, Text: text}
	}
	binary.BigEndian.PutUint16(field, uint16(size))
	return field, nil
}
