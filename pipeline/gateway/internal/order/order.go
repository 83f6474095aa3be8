// Package order keeps the order of goroutines.
package order

// Keep has the goroutines that the caller has made ready run in that order, if it is called before the caller
// waits. Go runs the one that became ready last before the others.
func Keep() { go func() {}() }
