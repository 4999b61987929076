package quota

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// CalendarOptions say which windows a Calendar has.
type CalendarOptions struct {
	Unit string         // hour, day, week, month, quarter or year
	Zone *time.Location // overrides the default UTC
	// Weekday overrides the default Monday as the first day of a week.
	Weekday *time.Weekday
	// Day of the month on which a month, quarter or year begins, 1 to 31; the last
	// day in shorter months. It overrides the default 1.
	Day int
	// Month in which a year begins and to which quarters are aligned. It overrides
	// the default January.
	Month time.Month
}

// Calendar divides time into the hours, days, weeks, months, quarters or years of
// a time zone. It is safe for concurrent use.
type Calendar struct {
	o      CalendarOptions
	months int                  // of a month, quarter or year; 0 for shorter units
	days   int                  // of a day or week; 0 for other units
	last   atomic.Pointer[span] // the window that was asked for last
}

type span struct{ start, end int64 } // unix ms

var calendarUnits = []string{"hour", "day", "week", "month", "quarter", "year"}

// NewCalendar returns a calendar; its error reports all problems of o.
func NewCalendar(o CalendarOptions) (*Calendar, error) {
	c := &Calendar{o: o}
	var problems []error
	if c.o.Zone == nil {
		c.o.Zone = time.UTC
	}
	months := false
	switch o.Unit {
	case "hour":
	case "day":
		c.days = 1
	case "week":
		c.days = 7
	case "month":
		c.months, months = 1, true
	case "quarter":
		c.months, months = 3, true
	case "year":
		c.months, months = 12, true
	default:
		problems = append(problems, fmt.Errorf("unit %q is not one of %v", o.Unit, calendarUnits))
	}
	if o.Weekday != nil && o.Unit != "week" {
		problems = append(problems, errors.New("a weekday is the anchor of weeks only"))
	}
	if o.Day != 0 && !months {
		problems = append(problems, errors.New("a day of the month is the anchor of months, quarters and years only"))
	}
	if o.Month != 0 && (!months || o.Unit == "month") {
		problems = append(problems, errors.New("a month is the anchor of quarters and years only"))
	}
	if o.Day < 0 || o.Day > 31 {
		problems = append(problems, fmt.Errorf("day %d of the month is not 1 to 31", o.Day))
	}
	if o.Month < 0 || o.Month > 12 {
		problems = append(problems, fmt.Errorf("month %d is not 1 to 12", int(o.Month)))
	}
	if c.o.Weekday == nil {
		monday := time.Monday
		c.o.Weekday = &monday
	}
	c.o.Day, c.o.Month = max(o.Day, 1), max(o.Month, time.January)
	return c, errors.Join(problems...)
}

// Unit returns the unit's name, e.g. "month".
func (c *Calendar) Unit() string { return c.o.Unit }

// Zone returns the time zone.
func (c *Calendar) Zone() *time.Location { return c.o.Zone }

// Window returns the window that holds at: its start and the start of the next
// one, in unix ms.
func (c *Calendar) Window(at int64) (start, end int64) {
	if s := c.last.Load(); s != nil && s.start <= at && at < s.end {
		return s.start, s.end
	}
	from, to := c.window(time.UnixMilli(at).In(c.o.Zone))
	s := &span{from.UnixMilli(), to.UnixMilli()}
	c.last.Store(s)
	return s.start, s.end
}

func (c *Calendar) window(at time.Time) (from, to time.Time) {
	y, m, d := at.Date()
	switch {
	case c.months > 0:
		n := y*12 + int(m) - int(c.o.Month)
		n -= n % c.months
		if from = c.month(n); from.After(at) { // its anchor day is yet to come
			n -= c.months
			from = c.month(n)
		}
		return from, c.month(n + c.months)
	case c.days > 0:
		if c.days == 7 {
			d -= (int(at.Weekday()) - int(*c.o.Weekday) + 7) % 7
		}
		return startOfDay(y, m, d, c.o.Zone), startOfDay(y, m, d+c.days, c.o.Zone)
	}
	_, offset := at.Zone()
	from = at.Add(-time.Duration((at.UnixMilli()+int64(offset)*1000)%3600_000) * time.Millisecond)
	to = from.Add(time.Hour)
	// Where the clocks move by a part of an hour, an hour is cut short.
	zoneStart, zoneEnd := at.ZoneBounds()
	if zoneStart.After(from) {
		from = zoneStart
	}
	if !zoneEnd.IsZero() && zoneEnd.Before(to) {
		to = zoneEnd
	}
	return from, to
}

// month returns the start of the window that begins n months after the anchor
// month of year 0.
func (c *Calendar) month(n int) time.Time {
	n += int(c.o.Month) - 1
	y, m := n/12, time.Month(n%12+1)
	last := time.Date(y, m+1, 0, 12, 0, 0, 0, time.UTC).Day()
	return startOfDay(y, m, min(c.o.Day, last), c.o.Zone)
}

// startOfDay returns the first instant of a date. Clocks that move at midnight
// make it one that is not 0:00, or the earlier one of two that are.
func startOfDay(y int, m time.Month, d int, zone *time.Location) time.Time {
	want := time.Date(y, m, d, 0, 0, 0, 0, time.UTC) // the date, normalised
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	zoneStart, zoneEnd := t.ZoneBounds()
	ty, tm, td := t.Date()
	switch date := time.Date(ty, tm, td, 0, 0, 0, 0, time.UTC); {
	case date.Before(want): // 0:00 does not exist; t fell before the gap
		return zoneEnd
	case date.After(want), t.Hour() != 0 || t.Minute() != 0: // or after it
		return zoneStart
	case zoneStart.IsZero():
		return t
	}
	_, before := zoneStart.Add(-time.Second).Zone()
	_, offset := t.Zone()
	if first := t.Add(time.Duration(offset-before) * time.Second); first.Before(zoneStart) && first.Before(t) {
		return first
	}
	return t
}

// CalendarUnits lists the units that NewCalendar knows.
func CalendarUnits() []string { return slices.Clone(calendarUnits) }
