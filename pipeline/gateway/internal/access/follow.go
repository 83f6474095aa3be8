package access

import "os"

// followed is a file that is read again whenever it is another one.
type followed struct {
	what, path string
	read       func() error
	seen       os.FileInfo
}

// follow reads a file for the first time.
func follow(what, path string, read func() error) (*followed, error) {
	f := &followed{what: what, path: path, read: read}
	f.seen, _ = os.Stat(path) // before it is read: what is written meanwhile is another one
	return f, read()
}

// look reads the file if it is another one than before; one that cannot be read is read once.
func (f *followed) look() (isRead bool, err error) {
	now, err := os.Stat(f.path)
	if err != nil {
		return false, err
	}
	if f.seen != nil && os.SameFile(now, f.seen) && now.ModTime().Equal(f.seen.ModTime()) && now.Size() == f.seen.Size() {
		return false, nil
	}
	f.seen = now
	return true, f.read()
}
