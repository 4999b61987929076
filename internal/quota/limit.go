package quota

import "time"

// Algorithm is how a limit counts.
type Algorithm uint8

// The algorithms. The zero value is FixedWindow.
const (
	FixedWindow Algorithm = iota
)

// Limit allows at most Quota units per Window. It is a value; limits are compared
// and shared freely, and never changed after they were made.
type Limit struct {
	Name      string // unique within a policy, [a-z0-9-]; part of keys, headers and answers
	Algorithm Algorithm
	Quota     int64         // units, 1 to MaxCost
	Window    time.Duration // whole milliseconds
	// Resources the limit covers, canonical; none means all of them, counted together.
	Resources []string
}

// IsUsageCounter reports whether the limit's count is, for a request that it
// covers, the usage counter of the current minute itself, so that it needs no
// key of its own: an epoch-aligned fixed window of one minute over one resource.
func (l *Limit) IsUsageCounter() bool {
	return l.Algorithm == FixedWindow && l.Window == time.Minute && len(l.Resources) == 1
}
