package quota

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of what a limit may ask for, beside MaxCost.
const (
	// MaxSubWindows bounds the work of a sliding window per request.
	MaxSubWindows = 1_000
	// MaxLog bounds the entries of a sliding log, MaxSlots those of concurrency.
	MaxLog   = 1_000_000
	MaxSlots = 10_000
	// maxParts bounds a token bucket's arithmetic: units times the parts of one.
	maxParts = 1 << 50
	// maxWindow bounds windows, so that times stay exact in Lua's numbers.
	maxWindow = 10 * 366 * 24 * time.Hour
)

// Errors of Request.Check.
var (
	ErrCost  = fmt.Errorf("cost must be 0 to %d units", int64(MaxCost))
	ErrLease = errors.New("a limit of concurrency needs a lease: name it in the request")
)

// Check tells whether the request can be decided at all.
func (r *Request) Check() error {
	if r.Cost < 0 || r.Cost > MaxCost {
		return ErrCost
	}
	if r.Lease == "" {
		for i := range r.Limits {
			if r.Limits[i].Algorithm == Concurrency && r.Cost > 0 {
				return ErrLease
			}
		}
	}
	return nil
}

// Validate reports all problems of a limit's fields, each with the remedy.
func (l *Limit) Validate() error {
	var problems []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	only := func(set bool, field string, a Algorithm) {
		bad(set && l.Algorithm != a, "%s belongs to %s only, not to %s; remove it", field, a, l.Algorithm)
	}
	bad(!validName(l.Name), "name %q must be 1 to 64 of a-z, 0-9 and -", l.Name)
	bad(int(l.Algorithm) >= len(algorithms), "algorithm %d is unknown", l.Algorithm)
	bad(l.Quota < 1 || l.Quota > MaxCost, "quota %d must be 1 to %d units", l.Quota, int64(MaxCost))
	only(l.FromFirst, "from_first", FixedWindow)
	only(l.Calendar != nil, "calendar", CalendarWindow)
	only(l.Precision != 0, "precision", SlidingWindow)
	only(l.MinInterval != 0, "min_interval", SlidingLog)
	only(l.CountRejected, "count_rejected", SlidingLog)
	only(l.Burst != 0, "burst", TokenBucket)
	if l.Algorithm == CalendarWindow {
		bad(l.Calendar == nil, "a calendar window needs a calendar: at least its unit")
		bad(l.Window != 0, "a calendar window has no window; remove it")
		return errors.Join(problems...)
	}
	if !wholeMs(l.Window) || l.Window > maxWindow {
		bad(true, "window %s must be whole milliseconds, 1ms to %s", l.Window, maxWindow)
		return errors.Join(problems...)
	}
	switch l.Algorithm {
	case SlidingWindow:
		if !wholeMs(l.Precision) || l.Window%l.Precision != 0 || l.Window/l.Precision > MaxSubWindows {
			bad(true, "precision %s must be whole milliseconds and divide the window %s into at most %d parts", l.Precision, l.Window, MaxSubWindows)
		}
	case SlidingLog:
		bad(l.Quota > MaxLog, "quota %d of a sliding log must be at most %d: it keeps an entry per request; use sliding_window", l.Quota, MaxLog)
		bad(l.MinInterval != 0 && !wholeMs(l.MinInterval) || l.MinInterval > l.Window, "min_interval %s must be whole milliseconds and at most the window %s", l.MinInterval, l.Window)
	case TokenBucket:
		bad(l.Burst < 0 || l.Burst > MaxCost, "burst %d must be 1 to %d units", l.Burst, int64(MaxCost))
		if l.Quota >= 1 && l.Burst >= 0 {
			unit, _ := l.Bucket()
			bad(l.Capacity() > maxParts/unit, "a bucket of %d units at %d per %s is too fine to count exactly; use rounder numbers or a shorter window", l.Capacity(), l.Quota, l.Window)
		}
	case Concurrency:
		bad(l.Quota > MaxSlots, "quota %d of concurrency must be at most %d", l.Quota, MaxSlots)
	}
	return errors.Join(problems...)
}

func wholeMs(d time.Duration) bool { return d >= time.Millisecond && d%time.Millisecond == 0 }

func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}
