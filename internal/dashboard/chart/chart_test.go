package chart

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTicksAreRoundAndReachTheHighestValue(t *testing.T) {
	for _, c := range []struct {
		highest int64
		want    string
	}{
		{0, "0 1"},
		{3, "0 1 2 3"},
		{7, "0 2 4 6 8"},
		{100, "0 20 40 60 80 100"},
		{101, "0 50 100 150"},
		{9_500, "0 2k 4k 6k 8k 10k"},
		{48_000, "0 10k 20k 30k 40k 50k"},
		{1_100_000, "0 0.5M 1M 1.5M"},
		{1 << 40, "0 500G 1000G 1500G"},
	} {
		ticks := Units(c.highest, 5)
		var labels []string
		for _, v := range ticks.Values {
			labels = append(labels, ticks.Label(v))
		}
		got := strings.Join(labels, " ")
		if got != c.want {
			t.Errorf("up to %d: %s, want %s", c.highest, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		highest, count := rapid.Int64Range(0, 1<<52).Draw(t, "highest"), rapid.IntRange(1, 12).Draw(t, "count")
		ticks := Units(highest, count)
		if ticks.Top < highest || len(ticks.Values) > count+1 || ticks.Values[len(ticks.Values)-1] != ticks.Top {
			t.Fatalf("%+v", ticks)
		}
	})
}

func TestBarsStandWhereTheirTimeAndTheirUnitsAre(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := New([]Column{
		{Start: at, End: at.Add(time.Minute), Admitted: 80, Rejected: 20},
		{Start: at.Add(time.Minute), End: at.Add(2 * time.Minute), Admitted: 40},
	}, 100, time.UTC)
	if got := c.Bars[0]; got.X != 4.5 || got.W != 41 || got.Admitted != (Extent{20, 80}) || got.Rejected != (Extent{0, 20}) {
		t.Errorf("the first bar is %+v", got)
	}
	if got := c.Bars[1]; got.X != 54.5 || got.Admitted != (Extent{60, 40}) || got.Rejected.H != 0 {
		t.Errorf("the second bar is %+v", got)
	}
}

func TestNothingLeavesThePlotAndNothingVanishes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "at"), 0)
		step := time.Duration(rapid.IntRange(1, 10_000).Draw(t, "minutes")) * time.Minute
		var columns []Column
		for range rapid.IntRange(0, 200).Draw(t, "n") {
			columns = append(columns, Column{
				Start: at, End: at.Add(step),
				Admitted: rapid.Int64Range(0, 1<<40).Draw(t, "a"), Rejected: rapid.Int64Range(0, 1<<40).Draw(t, "r"),
			})
			at = at.Add(step)
		}
		c := New(columns, 200, time.UTC)
		for _, b := range c.Bars {
			for _, v := range []struct {
				units int64
				Extent
			}{{b.Column.Admitted, b.Admitted}, {b.Column.Rejected, b.Rejected}} {
				if v.Y < 0 || v.Y+v.H > 200 || b.X < 0 || b.X+b.W > 100.001 {
					t.Fatalf("outside of the plot: %+v", b)
				}
				if v.units == 0 && v.H != 0 {
					t.Fatalf("nothing is drawn as something: %+v", b)
				}
			}
			if b.Column.Admitted > 0 && b.Admitted.H == 0 {
				t.Fatalf("admitted units are invisible: %+v", b)
			}
		}
	})
}

func TestTheTimeAxisFollowsTheWallClock(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err) // the Go tree brings a time zone database
	}
	day := time.Date(2026, 3, 29, 0, 0, 0, 0, berlin) // 23 hours long
	var labels []string
	for _, tick := range timeAxis(day, day.AddDate(0, 0, 1), berlin) {
		labels = append(labels, tick.Label)
	}
	// 02:00 does not exist; the clock shows 03:00 then, and 3-hour steps go on by the clock.
	if want := []string{"29 Mar", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00"}; !slices.Equal(labels, want) {
		t.Errorf("got %v", labels)
	}
	for _, span := range []time.Duration{time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 168 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour} {
		if n := len(timeAxis(day, day.Add(span), time.UTC)); n < 1 || n > maxLabels+1 {
			t.Errorf("%v has %d labels", span, n)
		}
	}
}
