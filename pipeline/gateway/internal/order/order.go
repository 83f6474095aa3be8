// Package order keeps the order of goroutines.
package order

// Keep has the goroutines that the caller has made ready run in that order, nearly always, if it is called before
// the caller waits. Go's scheduler runs the one that became ready last before the others; an empty one takes its
// place here. Go promises no order.
func Keep() { go func() {}() }
