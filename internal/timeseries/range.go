package timeseries

import (
	"cmp"
	"slices"
)

func sortPoints(points []Point) {
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.Minute, b.Minute) })
}

// Sum adds up points; its Minute is that of the first.
func Sum(points []Point) Point {
	var sum Point
	for i, p := range points {
		if i == 0 {
			sum.Minute = p.Minute
		}
		sum = sum.Plus(p)
	}
	return sum
}

// Step is the usage of step minutes, of which some may have been idle.
type Step struct {
	Sum Point // units in all; Minute is where the step begins
	Max Point // units of each column's busiest minute; Minute as in Sum
	// Minutes the step covers: fewer than the others' where the range ends in it.
	Minutes int64
}

// PerMinute returns the average of admitted units per minute, idle ones included.
func (s Step) PerMinute() float64 {
	if s.Minutes == 0 {
		return 0
	}
	return float64(s.Sum.Admitted) / float64(s.Minutes)
}

// Range arranges points of [from, to), in order, into steps of the given number
// of minutes, the first beginning at from. Every step is there, idle ones too.
// A step below 1 counts as 1; an empty range has no steps.
func Range(points []Point, from, to, step int64) []Step {
	step = max(step, 1)
	if to <= from {
		return nil
	}
	steps := make([]Step, 0, (to-from+step-1)/step)
	for at := from; at < to; at += step {
		s := Step{Sum: Point{Minute: at}, Max: Point{Minute: at}, Minutes: min(step, to-at)}
		for len(points) > 0 && points[0].Minute < at+s.Minutes {
			if p := points[0]; p.Minute >= at {
				s.Sum = s.Sum.Plus(p)
				s.Max.Admitted = max(s.Max.Admitted, p.Admitted)
				s.Max.Rejected = max(s.Max.Rejected, p.Rejected)
				s.Max.Refunded = max(s.Max.Refunded, p.Refunded)
			}
			points = points[1:]
		}
		steps = append(steps, s)
	}
	return steps
}
