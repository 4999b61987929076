package quota

import (
	"cmp"
	"slices"
)

// state is what a limit remembers of one token; the zero value remembers nothing.
// Which fields are used is the algorithm's affair.
type state struct {
	used   int64   // units: counters and windows from the first request
	start  int64   // unix ms: start of a window from the first request; 0 when none runs
	parts  []part  // sub-windows or log, oldest first
	leases []lease // in no order
	debt   int64   // token bucket: parts of a unit missing from a full bucket, see bucket
	seen   int64   // token bucket: unix ms for which debt holds
	expire int64   // unix ms from which it is worth nothing
}

// part is units of a sub-window (at is its number) or of a request (at is unix ms).
type part struct{ at, units int64 }

// lease is units that somebody holds until a time in unix ms.
type lease struct {
	id           string
	until, units int64
}

// Capacity is the largest cost that can ever fit, in units.
func (l *Limit) Capacity() int64 {
	if l.Algorithm == TokenBucket && l.Burst > 0 {
		return l.Burst
	}
	return l.Quota
}

// Bucket returns a token bucket's arithmetic: a unit has `unit` parts, of which
// `rate` are refilled every millisecond: Quota per Window in lowest terms. So
// nothing is ever rounded, and nothing drifts.
//
//	100 units per 1m    unit 600, rate 1: a unit every 600 ms
//	7 units per 1s      unit 1000, rate 7
func (l *Limit) Bucket() (unit, rate int64) {
	unit, rate = ms(l.Window), l.Quota
	a, b := unit, rate
	for b != 0 {
		a, b = b, a%b
	}
	return unit / a, rate / a
}

// subWindows is the number of sub-windows in a sliding window.
func (l *Limit) subWindows() int64 { return int64(l.Window / l.Precision) }

// settled returns what of s still counts at time at. The state itself stays as it
// is until something is taken: a clock that steps back finds it so.
func (l *Limit) settled(s state, at int64) state {
	switch l.Algorithm {
	case FixedWindow:
		if l.FromFirst && at >= s.start+ms(l.Window) {
			return state{}
		}
	case SlidingWindow:
		now := at / ms(l.Precision)
		s.parts = since(s.parts, now, l.subWindows())
	case SlidingLog:
		s.parts = since(s.parts, at, ms(l.Window))
	case TokenBucket:
		_, rate := l.Bucket()
		if elapsed := at - s.seen; elapsed > 0 {
			if elapsed >= ceilDiv(s.debt, rate) {
				return state{}
			}
			s.debt -= elapsed * rate
			s.seen = at
		}
	case Concurrency:
		var live []lease
		for _, h := range s.leases {
			if h.until > at {
				live = append(live, h)
			}
		}
		s.leases = live
	}
	return s
}

// since returns the parts less than width old at now, or at the latest part where
// now has fallen behind it.
func since(parts []part, now, width int64) []part {
	if n := len(parts); n > 0 {
		now = max(now, parts[n-1].at)
	}
	for len(parts) > 0 && parts[0].at <= now-width {
		parts = parts[1:]
	}
	return parts
}

// free returns the units that fit now, below 0 when more is used than allowed.
// s is settled.
func (l *Limit) free(s *state) int64 {
	switch l.Algorithm {
	case TokenBucket:
		unit, _ := l.Bucket()
		return floorDiv(l.Capacity()*unit-s.debt, unit)
	case SlidingWindow, SlidingLog:
		free := l.Quota
		for _, p := range s.parts {
			free -= p.units
		}
		return free
	case Concurrency:
		free := l.Quota
		for _, h := range s.leases {
			free -= h.units
		}
		return free
	}
	return l.Quota - s.used
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -ceilDiv(-a, b)
	}
	return a / b
}

// ceilDiv divides a, not negative, by b and rounds up.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// fit returns how many of count equal requests are allowed at time at.
func (l *Limit) fit(s *state, r *Request, count, at int64) int64 {
	if l.Algorithm == Concurrency && s.holds(r.Lease) {
		return count
	}
	free := l.free(s)
	switch {
	case free < 0:
		return 0
	case r.Cost == 0:
		return count
	}
	fit := min(count, free/r.Cost)
	if l.Algorithm == SlidingLog && l.MinInterval > 0 {
		if n := len(s.parts); n > 0 && at < s.parts[n-1].at+ms(l.MinInterval) {
			return 0
		}
		return min(fit, 1)
	}
	return fit
}

// take counts units at time at.
func (l *Limit) take(s *state, r *Request, units, at int64) {
	switch l.Algorithm {
	case FixedWindow, CalendarWindow:
		if l.FromFirst && s.start == 0 {
			s.start = at
		}
		s.used += units
		s.expire = s.start + ms(l.Window)
		if l.IsCounter() {
			s.expire = l.WindowEnd(at)
		}
	case SlidingWindow:
		now := at / ms(l.Precision)
		if n := len(s.parts); n > 0 && s.parts[n-1].at >= now {
			s.parts[n-1].units += units
			now = s.parts[n-1].at
		} else {
			s.parts = append(s.parts, part{now, units})
		}
		s.expire = (now + l.subWindows()) * ms(l.Precision)
	case SlidingLog:
		if n := len(s.parts); n > 0 {
			at = max(at, s.parts[n-1].at)
		}
		s.parts = append(s.parts, part{at, min(units, l.Quota+1)})
		// What lies behind more than a whole quota decides nothing.
		for over := -l.free(s); over > s.parts[0].units; over = -l.free(s) {
			s.parts = s.parts[1:]
		}
		s.expire = at + ms(l.Window)
	case TokenBucket:
		l.owe(s, units, at)
	case Concurrency:
		until := at + ms(l.Window)
		s.expire = max(s.expire, until)
		for i := range s.leases {
			if s.leases[i].id == r.Lease {
				s.leases[i].until = until
				return
			}
		}
		s.leases = append(s.leases, lease{r.Lease, until, min(units, l.Quota+1)})
	}
}

func (s *state) holds(id string) bool {
	return slices.ContainsFunc(s.leases, func(h lease) bool { return h.id == id })
}

// status returns the status at time at; refused is the cost of a request that was
// refused, -1 when none was. s is settled.
func (l *Limit) status(s *state, r *Request, at, refused int64) Status {
	free := l.free(s)
	st := Status{Remaining: max(0, free)}
	need := refused - free // units that must become free before the request fits
	switch {
	case refused < 0, l.Algorithm == Concurrency && s.holds(r.Lease):
		need = 0
	case refused > l.Capacity():
		st.RetryAfter, need = Never, 0
	}
	switch l.Algorithm {
	case FixedWindow, CalendarWindow:
		end := s.start + ms(l.Window)
		if l.IsCounter() {
			end = l.WindowEnd(at)
		}
		if s.used > 0 {
			st.Reset = duration(end - at)
		}
		if need > 0 {
			st.RetryAfter = duration(end - at)
		}
	case SlidingWindow:
		for _, p := range s.parts {
			st.Reset = duration((p.at+l.subWindows())*ms(l.Precision) - at)
			if need > 0 {
				st.RetryAfter = st.Reset
				need -= p.units
			}
		}
	case SlidingLog:
		for _, p := range s.parts {
			st.Reset = duration(p.at + ms(l.Window) - at)
			if need > 0 {
				st.RetryAfter = st.Reset
				need -= p.units
			}
		}
		if n := len(s.parts); n > 0 && refused > 0 && l.MinInterval > 0 {
			st.RetryAfter = max(st.RetryAfter, duration(s.parts[n-1].at-at)+l.MinInterval)
		}
	case TokenBucket:
		unit, rate := l.Bucket()
		late := s.seen - at // the clock has stepped back by so much
		if s.debt > 0 {
			st.Reset = duration(ceilDiv(s.debt, rate) + late)
		}
		if need > 0 {
			short := s.debt + refused*unit - l.Capacity()*unit
			st.RetryAfter = duration(ceilDiv(short, rate) + late)
		}
	case Concurrency:
		leases := slices.SortedFunc(slices.Values(s.leases), func(a, b lease) int { return cmp.Compare(a.until, b.until) })
		for _, h := range leases {
			st.Reset = duration(h.until - at)
			if need > 0 {
				st.RetryAfter = st.Reset
				need -= h.units
			}
		}
	}
	return st
}
