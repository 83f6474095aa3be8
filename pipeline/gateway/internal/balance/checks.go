package balance

// Thresholds say how many checks in a row count.
type Thresholds struct{ Unhealthy, Healthy int }

// Checks are those of one backend's health, which answers until it is known to be silent. The zero value is one that does.
type Checks struct {
	row      int // checks in a row that say other than what is known
	isSilent bool
}

// Note takes a check, and says whether the backend is silent now.
func (c *Checks) Note(answered bool, limits Thresholds) (isSilent bool) {
	if answered != c.isSilent {
		c.row = 0
		return c.isSilent
	}
	c.row++
	needed := limits.Unhealthy
	if c.isSilent {
		needed = limits.Healthy
	}
	if c.row >= needed {
		c.row, c.isSilent = 0, !c.isSilent
	}
	return c.isSilent
}
