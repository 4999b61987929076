// Package chart computes where things stand in a chart of usage; templates draw it.
//
// A chart has no fixed width: horizontal places are percentages of the plot's
// width, vertical ones are pixels from its top. An SVG without a viewBox takes
// both, so that a chart fills any screen while its text keeps its size.
//
//	columns  12:00 admitted 80, rejected 20   12:01 admitted 40
//	top      100  (the first round number at or above the highest column)
//	bars     12:00 x 0 % w 50 %, admitted y 20..100, rejected y 0..20 of 100 px
//
// Everything in this package is a pure function and safe for concurrent use.
package chart

import (
	"strconv"
	"time"
)

// Column is the usage of one step of time.
type Column struct {
	Start, End time.Time // half-open
	Admitted   int64     // units
	Rejected   int64     // units
	Partial    bool      // the step has not ended yet
}

// Chart is a chart of stacked columns, ready to be drawn.
type Chart struct {
	Height int // px of the plot
	Y      []YTick
	X      []XTick
	Bars   []Bar
}

// YTick is a horizontal line and its label.
type YTick struct {
	At    int // px
	Label string
}

// XTick is a mark on the time axis and its label.
type XTick struct {
	At    Percent
	Label string
	Day   bool // the label is a date: a day begins here
	// Rank thins labels out on narrow screens: those with rank 0 stay longest.
	Rank int
}

// Bar is a drawn column.
type Bar struct {
	Column
	X, W     Percent
	Admitted Extent
	Rejected Extent
}

// Extent is a bar's vertical place; an empty one has height 0.
type Extent struct {
	Y, H int // px
}

// Percent is a share of the plot's width.
type Percent float64

// String returns p as SVG's attributes take it.
func (p Percent) String() string {
	return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%"
}

// percent returns the share part/whole, rounded to a thousandth of a percent.
func percent(part, whole float64) Percent {
	if whole == 0 {
		return 0
	}
	return Percent(float64(int64(part/whole*100_000+0.5)) / 1000)
}

// gap is the share of a column's width that is left free beside its bar.
const gap = 0.18

// New lays columns out on a plot of the given height in px; the time axis is
// labelled in zone. Columns follow each other without holes.
func New(columns []Column, height int, zone *time.Location) Chart {
	var highest int64
	for _, c := range columns {
		highest = max(highest, c.Admitted+c.Rejected)
	}
	ticks := Units(highest, height/44)
	c := Chart{Height: height}
	for _, v := range ticks.Values {
		c.Y = append(c.Y, YTick{At: height - scale(v, ticks.Top, height), Label: ticks.Label(v)})
	}
	if len(columns) == 0 {
		return c
	}
	from, to := columns[0].Start, columns[len(columns)-1].End
	c.X = timeAxis(from, to, zone)
	width := to.Sub(from).Seconds()
	for _, col := range columns {
		b := Bar{
			Column: col,
			X:      percent(col.Start.Sub(from).Seconds()+gap/2*col.End.Sub(col.Start).Seconds(), width),
			W:      percent((1-gap)*col.End.Sub(col.Start).Seconds(), width),
		}
		b.Admitted = extent(0, col.Admitted, ticks.Top, height)
		b.Rejected = extent(height-b.Admitted.Y, col.Rejected, ticks.Top, height)
		if b.Admitted.H == 0 {
			b.Rejected = extent(0, col.Rejected, ticks.Top, height)
		}
		c.Bars = append(c.Bars, b)
	}
	return c
}

// extent stacks v units onto what already stands base px high. What is not
// nothing is never drawn as nothing.
func extent(base int, v, top int64, height int) Extent {
	if v <= 0 {
		return Extent{Y: height - base}
	}
	h := max(scale(v, top, height), 1)
	y := max(height-base-h, 0)
	return Extent{Y: y, H: height - base - y}
}

func scale(v, top int64, height int) int {
	return int(float64(v)/float64(top)*float64(height) + 0.5)
}

// Spark returns the points of a polyline of values in a box of the given size.
func Spark(values []int64, width, height int) string {
	var highest int64 = 1
	for _, v := range values {
		highest = max(highest, v)
	}
	b := make([]byte, 0, 12*len(values))
	for i, v := range values {
		x := 0.0
		if len(values) > 1 {
			x = float64(i) / float64(len(values)-1) * float64(width)
		}
		// Half a pixel of room at either end, for the stroke.
		y := 1 + (1-float64(v)/float64(highest))*float64(height-2)
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendFloat(b, x, 'f', 1, 64)
		b = append(b, ',')
		b = strconv.AppendFloat(b, y, 'f', 1, 64)
	}
	return string(b)
}
