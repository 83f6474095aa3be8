// Package version has the version of the gateway.
package version

// Version is the product's; a build sets it with -ldflags -X.
var Version = "dev"
