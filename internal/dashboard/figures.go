package dashboard

import (
	"net/url"
	"time"

	"github.com/tallygate/tallygate/internal/dashboard/chart"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// figures are a span's usage: the chart, the table beside it and what they add up to.
type figures struct {
	Span   span
	Points []history.Point
	Sum    usage.Totals
	Before usage.Totals // of the span of equal length before
	Peak   history.Point
	Chart  chart.Chart
}

const chartHeight = 220 // px

// usageFunc reads one stretch of usage.
type usageFunc func(history.Span) ([]history.Point, error)

func readFigures(r *request, read usageFunc) (*figures, error) {
	s, err := parseSpan(r.URL.Query(), r.Now, r.Zone)
	if err != nil {
		return nil, err
	}
	f := &figures{Span: s}
	if f.Points, err = read(s.Span); err != nil {
		return nil, err
	}
	before, err := read(s.before())
	if err != nil {
		return nil, err
	}
	f.Sum, f.Before = sum(f.Points), sum(before)
	columns := make([]chart.Column, len(f.Points))
	for i, p := range f.Points {
		end := p.Start.Add(s.Step)
		columns[i] = chart.Column{
			Start: p.Start, End: end, Admitted: p.Admitted, Rejected: p.Rejected,
			Partial: end.After(s.Until),
		}
		if i == 0 || p.Admitted+p.Rejected > f.Peak.Admitted+f.Peak.Rejected {
			f.Peak = p
		}
	}
	f.Chart = chart.New(columns, chartHeight, r.Zone)
	return f, nil
}

func sum(points []history.Point) usage.Totals {
	var t usage.Totals
	for _, p := range points {
		t.Admitted += p.Admitted
		t.Rejected += p.Rejected
		t.Refunded += p.Refunded
		t.Last = max(t.Last, p.Last)
	}
	return t
}

// Rows returns the points with something in them, the latest first.
func (f *figures) Rows() []history.Point {
	var rows []history.Point
	for i := len(f.Points) - 1; i >= 0; i-- {
		if p := f.Points[i]; p.Admitted+p.Rejected+p.Refunded > 0 {
			rows = append(rows, p)
		}
	}
	return rows
}

// Empty reports whether there was no usage at all.
func (f *figures) Empty() bool { return f.Sum.Admitted+f.Sum.Rejected+f.Sum.Refunded == 0 }

// Average is the average of admitted units per second, over what of the span is past.
func (f *figures) Average() string {
	past := f.Span.Until.Sub(f.Span.From).Seconds()
	if past <= 0 {
		return "0"
	}
	return rate(float64(f.Sum.Admitted) / past)
}

// Asked is how many units were asked for, whatever became of them.
func (f *figures) Asked() int64 { return f.Sum.Admitted + f.Sum.Rejected }

// PeakUnits is how many units were asked for in the busiest step.
func (f *figures) PeakUnits() int64 { return f.Peak.Admitted + f.Peak.Rejected }

// Changes compare with the span before; nothing can be compared with a future.
func (f *figures) AdmittedChange() change { return changeOf(f.Sum.Admitted, f.Before.Admitted) }
func (f *figures) RejectedChange() change { return changeOf(f.Sum.Rejected, f.Before.Rejected) }

// End is the end of a point's step.
func (f *figures) End(start time.Time) time.Time { return start.Add(f.Span.Step) }

// resources reads the chosen resource out of a query, canonical; an empty
// parameter chooses the default one, an absent one chooses all.
func resources(q url.Values) ([]string, error) {
	if !q.Has("resource") {
		return nil, nil
	}
	canonical, err := token.ParseResource(q.Get("resource"))
	if err != nil {
		return nil, err
	}
	return []string{canonical}, nil
}
