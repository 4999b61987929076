package chart

import (
	"strconv"
	"strings"
	"time"
)

// Ticks are round numbers from 0 to Top in equal steps.
type Ticks struct {
	Values []int64
	Top    int64
}

// Units returns ticks for whole units from 0 to at least highest, about count of
// them beside the zero. The step is 1, 2 or 5 times a power of ten.
func Units(highest int64, count int) Ticks {
	highest, count = max(highest, 1), max(count, 1)
	step, decade := int64(1), int64(1)
	for (highest+step-1)/step > int64(count) {
		switch step / decade {
		case 1:
			step = 2 * decade
		case 2:
			step = 5 * decade
		default:
			decade *= 10
			step = decade
		}
	}
	t := Ticks{Top: (highest + step - 1) / step * step}
	for v := int64(0); v <= t.Top; v += step {
		t.Values = append(t.Values, v)
	}
	return t
}

// Label returns v in the unit that suits all ticks: 0, 250k, 500k.
func (t Ticks) Label(v int64) string {
	if v == 0 {
		return "0"
	}
	switch {
	case t.Top >= 1e9:
		return compact(v, 1e9, "G")
	case t.Top >= 1e6:
		return compact(v, 1e6, "M")
	case t.Top >= 10_000:
		return compact(v, 1e3, "k")
	}
	return strconv.FormatInt(v, 10)
}

func compact(v, unit int64, suffix string) string {
	s := strconv.FormatFloat(float64(v)/float64(unit), 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") + suffix
}

// steps of the time axis, in minutes, up to half a day.
var steps = []int{1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720}

// maxLabels is how many labels a wide time axis holds.
const maxLabels = 9

// timeAxis marks [from, to) at round times of the clock in zone.
func timeAxis(from, to time.Time, zone *time.Location) []XTick {
	span := to.Sub(from)
	if span <= 0 {
		return nil
	}
	minutes := span.Minutes()
	for _, step := range steps {
		if minutes/float64(step) <= maxLabels {
			return clockTicks(from, to, step, zone)
		}
	}
	days := 1
	for minutes/1440/float64(days) > maxLabels {
		days++
	}
	return dayTicks(from, to, days, zone)
}

func clockTicks(from, to time.Time, step int, zone *time.Location) []XTick {
	var ticks []XTick
	first := from.In(zone)
	for i := 0; ; i++ {
		// By the wall clock, so that a change of the clock moves no label.
		at := time.Date(first.Year(), first.Month(), first.Day(), 0, i*step, 0, 0, zone)
		if !at.Before(to) {
			return ticks
		}
		if at.Before(from) {
			continue
		}
		midnight := at.Hour() == 0 && at.Minute() == 0
		tick := XTick{
			At: percent(at.Sub(from).Seconds(), to.Sub(from).Seconds()), Label: at.Format("15:04"),
			Day: midnight, Rank: i % 2,
		}
		if midnight {
			tick.Label = at.Format("2 Jan")
		}
		ticks = append(ticks, tick)
	}
}

func dayTicks(from, to time.Time, days int, zone *time.Location) []XTick {
	var ticks []XTick
	first := from.In(zone)
	for i := 0; ; i++ {
		at := time.Date(first.Year(), first.Month(), first.Day()+i*days, 0, 0, 0, 0, zone)
		if !at.Before(to) {
			return ticks
		}
		if at.Before(from) {
			continue
		}
		layout := "2 Jan"
		if to.Sub(from) > 300*24*time.Hour {
			layout = "Jan 2006"
		}
		ticks = append(ticks, XTick{
			At: percent(at.Sub(from).Seconds(), to.Sub(from).Seconds()), Label: at.Format(layout),
			Day: days == 1, Rank: i % 2,
		})
	}
}
