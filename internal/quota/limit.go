package quota

import (
	"strings"
	"time"
)

// Algorithm is how a limit counts.
type Algorithm uint8

// The algorithms. The zero value is FixedWindow.
const (
	// FixedWindow counts in windows of one length, aligned to the epoch or begun
	// by the first request. Cheapest; twice the quota can pass around an edge.
	FixedWindow Algorithm = iota
	// CalendarWindow counts in hours, days, weeks, months, quarters or years of a
	// time zone.
	CalendarWindow
	// SlidingWindow counts in sub-windows of Precision and adds up the last
	// Window/Precision of them, the current one included: never more than the quota
	// in any stretch of Window less Precision.
	SlidingWindow
	// SlidingLog remembers every request for a Window: exact to the millisecond,
	// at the price of an entry per request.
	SlidingLog
	// TokenBucket holds up to Burst units and is refilled by Quota per Window,
	// evenly: bursts pass, the long-term rate holds.
	TokenBucket
	// Concurrency allows Quota units at a time: a request takes them under its
	// lease until it is released, or until Window has passed.
	Concurrency
)

// Limit allows at most Quota units per Window. It is a value that several
// goroutines may share; nobody changes it after it was made. Validate tells
// whether its fields make sense together.
type Limit struct {
	Name      string // unique within a policy, [a-z0-9-]; part of keys, headers and answers
	Algorithm Algorithm
	Quota     int64         // units, 1 to MaxCost
	Window    time.Duration // whole milliseconds; unused by CalendarWindow
	// Resources the limit covers, counted together: canonical names, or patterns
	// with a raw *, which no name contains. None means all of them.
	Resources []string
	// Shadow limits are asked and reported but never refuse. They count what they
	// would have allowed.
	Shadow bool

	FromFirst     bool          // FixedWindow: a window begins with its first request
	Calendar      *Calendar     // CalendarWindow: which windows
	Precision     time.Duration // SlidingWindow: of a sub-window, whole ms, divides Window
	MinInterval   time.Duration // SlidingLog: least distance between two requests, whole ms
	CountRejected bool          // SlidingLog: refused requests count as well, whoever refused them
	Burst         int64         // TokenBucket: units that a full bucket holds; 0 means Quota
}

// IsUsageCounter reports whether the limit's count is, for a request that it
// covers, the usage counter of the current minute itself, so that it needs no
// state of its own: an epoch-aligned fixed window of one minute over one resource.
func (l *Limit) IsUsageCounter() bool {
	return l.Algorithm == FixedWindow && !l.FromFirst && !l.Shadow && l.Window == time.Minute &&
		len(l.Resources) == 1 && !strings.Contains(l.Resources[0], "*")
}

// IsCounter reports whether the limit's state is one count per window whose start
// follows from the time alone.
func (l *Limit) IsCounter() bool {
	return l.Algorithm == FixedWindow && !l.FromFirst || l.Algorithm == CalendarWindow
}

var algorithms = [...]string{
	FixedWindow:    "fixed_window",
	CalendarWindow: "calendar_window",
	SlidingWindow:  "sliding_window",
	SlidingLog:     "sliding_log",
	TokenBucket:    "token_bucket",
	Concurrency:    "concurrency",
}

// String returns the algorithm's name in configuration, e.g. "fixed_window".
func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a]
	}
	return "unknown"
}

// ParseAlgorithm is the inverse of String.
func ParseAlgorithm(name string) (Algorithm, bool) {
	for i, known := range algorithms {
		if name == known {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// Algorithms lists the names that ParseAlgorithm knows.
func Algorithms() []string { return algorithms[:] }
