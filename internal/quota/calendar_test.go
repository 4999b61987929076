package quota_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
)

func calendar(t testing.TB, o quota.CalendarOptions) *quota.Calendar {
	t.Helper()
	c, err := quota.NewCalendar(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestCalendarWindows(t *testing.T) {
	sunday := time.Sunday
	for _, c := range []struct {
		name           string
		o              quota.CalendarOptions
		zone           string
		at, start, end string
	}{
		{"the day that clocks go forward has 23 hours", quota.CalendarOptions{Unit: "day"}, "Europe/Berlin", "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"the day that clocks go back has 25 hours", quota.CalendarOptions{Unit: "day"}, "Europe/Berlin", "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"a day may begin at 1:00", quota.CalendarOptions{Unit: "day"}, "America/Sao_Paulo", "2018-11-04T01:30:00-02:00", "2018-11-04T00:00:00-03:00", "2018-11-05T00:00:00-02:00"},
		{"the day before ends there", quota.CalendarOptions{Unit: "day"}, "America/Sao_Paulo", "2018-11-03T23:30:00-03:00", "2018-11-03T00:00:00-03:00", "2018-11-04T00:00:00-03:00"},
		{"midnight comes twice: the day begins with the first", quota.CalendarOptions{Unit: "day"}, "America/Havana", "2026-11-01T00:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"a date that never was", quota.CalendarOptions{Unit: "day"}, "Pacific/Apia", "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"the second 2 o'clock is an hour of its own", quota.CalendarOptions{Unit: "hour"}, "Europe/Berlin", "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		{"a zone off by half an hour", quota.CalendarOptions{Unit: "hour"}, "Asia/Kolkata", "2026-05-01T10:15:00+05:30", "2026-05-01T10:00:00+05:30", "2026-05-01T11:00:00+05:30"},
		{"clocks that go back by half an hour cut an hour short", quota.CalendarOptions{Unit: "hour"}, "Australia/Lord_Howe", "2026-04-05T01:40:00+10:30", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"},
		{"a week begins on Monday", quota.CalendarOptions{Unit: "week"}, "UTC", "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"or on Sunday", quota.CalendarOptions{Unit: "week", Weekday: &sunday}, "UTC", "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		{"a month begins on the 1st", quota.CalendarOptions{Unit: "month"}, "UTC", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"or on the 15th", quota.CalendarOptions{Unit: "month", Day: 15}, "UTC", "2026-01-14T23:59:59Z", "2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z"},
		{"the 31st is the last day of a shorter month", quota.CalendarOptions{Unit: "month", Day: 31}, "UTC", "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"a leap day", quota.CalendarOptions{Unit: "month", Day: 30}, "UTC", "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z"},
		{"quarters", quota.CalendarOptions{Unit: "quarter"}, "UTC", "2026-12-31T23:59:59Z", "2026-10-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"quarters from February", quota.CalendarOptions{Unit: "quarter", Month: time.February}, "UTC", "2026-01-31T00:00:00Z", "2025-11-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"a year from 6 April", quota.CalendarOptions{Unit: "year", Month: time.April, Day: 6}, "Europe/London", "2026-04-05T23:59:59+01:00", "2025-04-06T00:00:00+01:00", "2026-04-06T00:00:00+01:00"},
		{"a year from 29 February", quota.CalendarOptions{Unit: "year", Month: time.February, Day: 29}, "UTC", "2027-03-01T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Zone = zone(t, c.zone)
			at, err := time.Parse(time.RFC3339, c.at)
			if err != nil {
				t.Fatal(err)
			}
			start, end := calendar(t, c.o).Window(at.UnixMilli())
			show := func(at int64) string { return time.UnixMilli(at).In(at0(c.start)).Format(time.RFC3339) }
			if got := show(start); got != c.start {
				t.Errorf("window of %s begins %s, want %s", c.at, got, c.start)
			}
			if got := time.UnixMilli(end).In(at0(c.end)).Format(time.RFC3339); got != c.end {
				t.Errorf("window of %s ends %s, want %s", c.at, got, c.end)
			}
		})
	}
}

// at0 is the fixed zone that a time is written in.
func at0(text string) *time.Location {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	_, offset := t.Zone()
	return time.FixedZone("", offset)
}

// Windows tile time: each holds the times it is asked for, and the next begins
// where it ends, through every change of clocks since 1970.
func FuzzCalendarWindowsTileTime(f *testing.F) {
	f.Add(int64(1_793_000_000_000), uint8(0), uint8(0), uint8(0))
	f.Add(int64(1_325_203_200_000), uint8(1), uint8(3), uint8(31))
	f.Add(int64(1_541_300_400_000), uint8(3), uint8(1), uint8(15))
	zones := []*time.Location{
		zone(f, "Europe/Berlin"), zone(f, "America/Sao_Paulo"), zone(f, "Australia/Lord_Howe"), zone(f, "Pacific/Apia"),
		zone(f, "America/Havana"), zone(f, "Asia/Kolkata"), zone(f, "Africa/Monrovia"), zone(f, "Asia/Beirut"), zone(f, "Asia/Tehran"),
	}
	units := quota.CalendarUnits()
	f.Fuzz(func(t *testing.T, at int64, unit, where, day uint8) {
		at = (at%4_102_444_800_000 + 4_102_444_800_000) % 4_102_444_800_000 // until 2100
		at += 86_400_000 * 40
		o := quota.CalendarOptions{Unit: units[int(unit)%len(units)], Zone: zones[int(where)%len(zones)]}
		if int(unit)%len(units) >= 3 {
			o.Day = int(day) % 32
		}
		start, end := calendar(t, o).Window(at)
		if at < start || at >= end {
			t.Fatalf("%d is not in its own %s [%d, %d) in %s", at, o.Unit, start, end, o.Zone)
		}
		c := calendar(t, o)
		for _, other := range []int64{start, (start + end) / 2, end - 1} {
			if s, e := c.Window(other); s != start || e != end {
				t.Fatalf("%d is in [%d, %d), but %d of it in [%d, %d): %s in %s", at, start, end, other, s, e, o.Unit, o.Zone)
			}
			c = calendar(t, o) // forget the last window
		}
		if s, _ := c.Window(end); s != end {
			t.Fatalf("the %s after [%d, %d) in %s begins %d", o.Unit, start, end, o.Zone, s)
		}
		if _, e := calendar(t, o).Window(start - 1); e != start {
			t.Fatalf("the %s before [%d, %d) in %s ends %d", o.Unit, start, end, o.Zone, e)
		}
	})
}

func TestACalendarReportsAllProblems(t *testing.T) {
	monday := time.Monday
	_, err := quota.NewCalendar(quota.CalendarOptions{Unit: "fortnight", Weekday: &monday, Day: 32, Month: 13})
	for _, want := range []string{`unit "fortnight"`, "weekday", "day 32", "month 13"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q: %v", want, err)
		}
	}
}
