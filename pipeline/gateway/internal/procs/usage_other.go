//go:build !linux

package procs

import "time"

var began = time.Now()

// usage is not known: as if all processors were busy all the time.
func usage() time.Duration { return 1 << 10 * time.Since(began) }
