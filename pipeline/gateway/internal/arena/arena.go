// Package arena is the memory that a server shares with its workers and its gateway: one nameless file, cut
// into regions of equal size. The gateway writes to one of them, and reads the others. pipeline/workers/shm/arena.py has
// the server's side.
package arena

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"
)

// Alignment of a tensor: a cache line, and what vector instructions ask for.
const Alignment = 64

// errClosed says that the server is gone, and its memory with it.
var errClosed = errors.New("the server's memory is closed")

// Memory is the arena of one server, as far as it is mapped. It is unmapped when it is closed and nobody
// reads or writes
// any of it.
type Memory struct {
	file, held  *os.File
	regionBytes int64
	own         uint32

	lock     sync.Mutex
	regions  map[uint32][]byte
	space    space
	blocks   map[int64]*Block // that are given out, by their offsets
	users    int              // blocks and answers that are in use in this process
	isClosed bool
}

// Open maps the region that is ours. Both files are the memory's from then on, also if that fails; `held` is
// closed when
// all of it is unmapped, which tells the server.
func Open(file, held *os.File, own uint32, regionBytes int64) (*Memory, error) {
	m := &Memory{file: file, held: held, regionBytes: regionBytes, own: own, regions: map[uint32][]byte{}, blocks: map[int64]*Block{}}
	mapped, err := mapRegion(file, int64(own)*regionBytes, regionBytes, true)
	if err != nil {
		_, _ = file.Close(), held.Close()
		return nil, err
	}
	m.regions[own] = mapped
	m.space = newSpace(regionBytes)
	return m, nil
}

// Block is a part of our region. Its receiver holds it; from its notification on, so does the server.
type Block struct {
	Data   []byte // to write to until the server is notified
	memory *Memory
	offset int64 // of Data
	start  int64 // of what was given out
	holds  int
}

// Place returns a block of so many bytes, of which that at `lead` is aligned; nil: there is no room, or no
// memory.
func (m *Memory) Place(size, lead int) *Block {
	if m == nil {
		return nil
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.isClosed {
		return nil
	}
	shift := int64(-lead) & (Alignment - 1)
	start, isRoom := m.space.take(int64(size) + shift)
	if !isRoom {
		return nil
	}
	offset := start + shift
	b := &Block{Data: m.regions[m.own][offset : offset+int64(size) : offset+int64(size)], memory: m, offset: offset, start: start, holds: 1}
	m.blocks[start] = b
	m.users++
	return b
}

// IsOf says whether it is a block of that memory; false if either is nil.
func (b *Block) IsOf(m *Memory) bool { return b != nil && m != nil && b.memory == m }

// Where returns the place of some of its bytes, as the server has to know it.
func (b *Block) Where(data []byte) (region uint32, offset, size uint64) {
	if len(data) == 0 {
		return b.memory.own, uint64(b.offset), 0
	}
	at := uintptr(unsafe.Pointer(&data[0])) - uintptr(unsafe.Pointer(&b.Data[0]))
	return b.memory.own, uint64(b.offset) + uint64(at), uint64(len(data))
}

// Told notes that the server holds the block until it says that it is free.
func (b *Block) Told() {
	b.memory.lock.Lock()
	defer b.memory.lock.Unlock()
	b.holds++
}

// Release notes that this process does not read or write the block any more.
func (b *Block) Release() {
	if b == nil {
		return
	}
	m := b.memory
	m.lock.Lock()
	defer m.lock.Unlock()
	b.Data = nil
	m.drop(b)
	m.left()
}

// Freed takes back what the server does not need any more: the block in which that offset lies.
func (m *Memory) Freed(offset uint64) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.isClosed {
		return nil
	}
	b, isOut := m.blocks[int64(offset)&^(Alignment-1)]
	if !isOut {
		return fmt.Errorf("it frees memory at %d, where nothing was given out", offset)
	}
	m.drop(b)
	return nil
}

// drop takes one hold off a block; the lock is held.
func (m *Memory) drop(b *Block) {
	if b.holds--; b.holds == 0 && !m.isClosed {
		delete(m.blocks, b.start)
		if from, to := m.space.give(b.start); from < to {
			discard(m.regions[m.own][from:to])
		}
	}
}

// View returns bytes of any region, to be read until Left is called.
func (m *Memory) View(region uint32, offset, size uint64) ([]byte, error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.isClosed {
		return nil, errClosed
	}
	if offset > uint64(m.regionBytes) || size > uint64(m.regionBytes)-offset {
		return nil, fmt.Errorf("%d bytes at %d end outside of their region", size, offset)
	}
	mapped, isMapped := m.regions[region]
	if !isMapped {
		var err error
		if mapped, err = mapRegion(m.file, int64(region)*m.regionBytes, m.regionBytes, false); err != nil {
			return nil, fmt.Errorf("region %d cannot be mapped: %w", region, err)
		}
		m.regions[region] = mapped
	}
	return mapped[offset : offset+size : offset+size], nil
}

// Reads notes that somebody reads views, until Left.
func (m *Memory) Reads() {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.users++
}

// Left ends one use: that of a block, or one that Reads has begun.
func (m *Memory) Left() {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.left()
}

func (m *Memory) left() {
	m.users--
	m.unmapIfUnused()
}

// Close ends it: the server has ended, or does not answer any more. Blocks in use stay mapped until they are
// released.
func (m *Memory) Close() {
	if m == nil {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if !m.isClosed {
		m.isClosed = true
		_ = m.file.Close()
		m.unmapIfUnused()
	}
}

func (m *Memory) unmapIfUnused() {
	if m.isClosed && m.users == 0 {
		for _, mapped := range m.regions {
			unmap(mapped)
		}
		m.regions = nil
		_ = m.held.Close()
	}
}

// InUse returns how many bytes are given out.
func (m *Memory) InUse() int64 {
	if m == nil {
		return 0
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.space.used
}
