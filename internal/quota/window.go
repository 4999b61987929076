package quota

import "time"

// minuteMs is the width of a usage counter.
const minuteMs = int64(time.Minute / time.Millisecond)

// Minute returns the epoch minute of a time in unix ms.
func Minute(at int64) int64 { return at / minuteMs }

// windowMs is the limit's window in milliseconds.
func (l *Limit) windowMs() int64 { return int64(l.Window / time.Millisecond) }

// WindowStart returns the start, in unix ms, of the limit's window that holds at.
func (l *Limit) WindowStart(at int64) int64 { return at - at%l.windowMs() }

// WindowEnd returns the end, in unix ms, of the limit's window that holds at: the
// first millisecond of the next one.
func (l *Limit) WindowEnd(at int64) int64 { return l.WindowStart(at) + l.windowMs() }

// CountStatus returns the status of a limit that counts used units in the window
// of at. refused is the cost of a request that was refused by some limit, 0 when
// the request was allowed.
func (l *Limit) CountStatus(used, at, refused int64) Status {
	s := Status{Remaining: max(0, l.Quota-used)}
	end := time.Duration(l.WindowEnd(at)-at) * time.Millisecond
	if used > 0 {
		s.Reset = end
	}
	switch {
	case refused > l.Quota:
		s.RetryAfter = Never
	case refused > 0 && used+refused > l.Quota:
		s.RetryAfter = end
	}
	return s
}
