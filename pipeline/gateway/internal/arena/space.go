package arena

import "slices"

// mostKept bytes of memory stay behind the last block for the next burst. To touch a page for the first time costs more
// than to copy 4 KiB into it: so memory goes back to the system in bulk only.
const (
	mostKept  = 32 << 20
	pageBytes = 4 << 10
)

// space gives out parts of a region: first fit from the lowest address, so that memory stays dense.
type space struct {
	free    []span          // by address; between two of them there is always a part that is given out
	sizes   map[int64]int64 // of those by their starts
	size    int64
	used    int64
	touched int64 // no page from here on has memory
}

type span struct{ start, end int64 }

func newSpace(size int64) space {
	return space{free: []span{{0, size}}, sizes: map[int64]int64{}, size: size}
}

// take returns where so many bytes begin; false: there is no room.
func (s *space) take(size int64) (start int64, isRoom bool) {
	needed := max(up(size, Alignment), Alignment)
	for at := range s.free {
		each := &s.free[at]
		if each.end-each.start < needed {
			continue
		}
		start = each.start
		if each.start += needed; each.start == each.end {
			s.free = slices.Delete(s.free, at, at+1)
		}
		s.sizes[start] = needed
		s.used += needed
		s.touched = max(s.touched, start+needed)
		return start, true
	}
	return 0, false
}

// give takes back what begins there. The bytes that it returns are to be given back to the system.
func (s *space) give(start int64) (from, to int64) {
	needed := s.sizes[start]
	delete(s.sizes, start)
	s.used -= needed
	one := span{start, start + needed}
	at, _ := slices.BinarySearchFunc(s.free, start, func(each span, start int64) int { return int(each.start - start) })
	if at < len(s.free) && s.free[at].start == one.end {
		one.end = s.free[at].end
		s.free = slices.Delete(s.free, at, at+1)
	}
	if at > 0 && s.free[at-1].end == one.start {
		s.free[at-1].end = one.end
	} else {
		s.free = slices.Insert(s.free, at, one)
	}
	last := s.free[len(s.free)-1]
	if last.end != s.size || s.touched-last.start <= mostKept {
		return 0, 0
	}
	from, to = up(last.start+mostKept/2, pageBytes), up(s.touched, pageBytes)
	s.touched = from
	return from, to
}

func up(size, unit int64) int64 { return (size + unit - 1) &^ (unit - 1) }
