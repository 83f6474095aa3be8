// Package version says which one runs.
package version

// Version is the product's; a build sets it with -ldflags -X.
var Version = "dev"
