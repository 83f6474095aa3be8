package h2guard

import "encoding/binary"

// Kinds of frames (RFC 9113, 6).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameWindowUpdate = 0x8
	frameContinuation = 0x9

	flagEnd = 0x1 // of DATA: the stream's end

	headBytes = 9
	codeBytes = 4 // the code of a reset, which is read with its head
)

// seen is a frame whose head has passed.
type seen struct {
	kind, flags byte
	size        int
	code        uint32 // of a reset
}

// scanner finds the heads of frames in what passes, in any pieces.
type scanner struct {
	head [headBytes + codeBytes]byte
	have int
	skip int // of a payload
}

// isBetween says whether no frame has begun and not ended.
func (s *scanner) isBetween() bool { return s.have == 0 && s.skip == 0 }

// feed tells of each frame in data, until told says no.
func (s *scanner) feed(data []byte, told func(seen) bool) bool {
	for len(data) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(data))
			s.skip -= n
			data = data[n:]
			continue
		}
		n := copy(s.head[s.have:s.wanted()], data)
		s.have += n
		data = data[n:]
		if s.have < s.wanted() {
			continue
		}
		frame := s.take()
		if !told(frame) {
			return false
		}
	}
	return true
}

// wanted returns how many bytes of a frame are looked at.
func (s *scanner) wanted() int {
	if s.have >= headBytes && s.head[3] == frameReset && s.size() >= codeBytes {
		return headBytes + codeBytes
	}
	return headBytes
}

func (s *scanner) size() int {
	return int(s.head[0])<<16 | int(s.head[1])<<8 | int(s.head[2])
}

// take returns the frame whose head is whole, and passes on to its payload.
func (s *scanner) take() seen {
	frame := seen{kind: s.head[3], flags: s.head[4], size: s.size()}
	s.skip = frame.size
	if s.have > headBytes {
		frame.code = binary.BigEndian.Uint32(s.head[headBytes:])
		s.skip -= codeBytes
	}
	s.have = 0
	return frame
}
