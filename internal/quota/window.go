package quota

import "time"

// minuteMs is the width of a usage counter.
const minuteMs = int64(time.Minute / time.Millisecond)

// Minute returns the epoch minute of a time in unix ms.
func Minute(at int64) int64 { return at / minuteMs }

func ms(d time.Duration) int64 { return int64(d / time.Millisecond) }

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// WindowAt returns the window that holds at, [start, end) in unix ms: of a
// calendar limit by its calendar, of every other one aligned to the epoch.
func (l *Limit) WindowAt(at int64) (start, end int64) {
	if l.Algorithm == CalendarWindow {
		return l.Calendar.Window(at)
	}
	w := ms(l.Window)
	start = at - at%w
	return start, start + w
}

// WindowStart returns the start of WindowAt.
func (l *Limit) WindowStart(at int64) int64 {
	start, _ := l.WindowAt(at)
	return start
}

// WindowEnd returns the end of WindowAt: the first millisecond of the next window.
func (l *Limit) WindowEnd(at int64) int64 {
	_, end := l.WindowAt(at)
	return end
}

// CountStatus returns the status of a limit that counts used units in the window
// of at. refused is the cost of a request that was refused by some limit, -1 when
// the request was allowed.
func (l *Limit) CountStatus(used, at, refused int64) Status {
	s := Status{Remaining: max(0, l.Quota-used)}
	end := duration(l.WindowEnd(at) - at)
	if used > 0 {
		s.Reset = end
	}
	if refused >= 0 && used+refused > l.Quota {
		s.RetryAfter = end
		if refused > l.Quota {
			s.RetryAfter = Never
		}
	}
	return s
}
