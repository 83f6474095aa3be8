package access

import "context"

// Side says what a port is for.
type Side int

// A port for all is the only one; beside one for admins the public ones do not know what is not for
// everybody.
const (
	AllSides Side = iota
	PublicSide
	AdminSide
)

// Has reports whether a port has anything that needs a role, not who may use it.
func (s Side) Has(role Role) bool { return s != PublicSide || role == Open || role == Infer }

type sideKey struct{}

// WithSide returns a context of what came to a port.
func WithSide(ctx context.Context, side Side) context.Context {
	return context.WithValue(ctx, sideKey{}, side)
}

// SideOf returns the side that a context has, or another one.
func SideOf(ctx context.Context, otherwise Side) Side {
	if found, isSaid := ctx.Value(sideKey{}).(Side); isSaid {
		return found
	}
	return otherwise
}
