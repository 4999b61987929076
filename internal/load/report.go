package load

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Report is the account of one run. Its JSON form is what --report writes.
type Report struct {
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Seed     uint64    `json:"seed"`
	Requests Counts    `json:"requests"`
	Units    Counts    `json:"units"`
	// AnswersPerSecond counts admitted and rejected requests.
	AnswersPerSecond float64   `json:"answers_per_second"`
	Latency          Latency   `json:"latency_us"`
	Errors           []Failure `json:"errors,omitempty"` // most frequent first
	Tokens           []Usage   `json:"tokens"`           // by token; only those that were asked for
	Cells            []Cell    `json:"cells"`            // by token, resource and minute
}

// Counts are requests or units by outcome.
type Counts struct {
	Admitted int64 `json:"admitted"`
	Rejected int64 `json:"rejected"`
	Failed   int64 `json:"failed"`  // certainly not counted
	Unknown  int64 `json:"unknown"` // counted as admitted, as rejected, or not at all
}

func (c *Counts) add(t tally) {
	c.Admitted += t[0]
	c.Rejected += t[1]
	c.Failed += t[2]
	c.Unknown += t[3]
}

// Usage is the units of one token.
type Usage struct {
	Token string `json:"token"`
	Counts
}

// Cell is the units of one token and resource in one minute.
type Cell struct {
	Token    string `json:"token"`
	Resource string `json:"resource,omitempty"`
	Minute   int64  `json:"minute,omitempty"` // unix seconds / 60 by the decider's clock; absent when it did not tell
	Counts
}

// Latency is from the moment a request was due to its outcome, in µs.
type Latency struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p99_9"`
	Max  int64 `json:"max"`
}

// Failure is an error and how many requests ended with it.
type Failure struct {
	Message string `json:"message"`
	Count   int64  `json:"count"`
}

// maxErrors bounds how many different messages a worker keeps.
const maxErrors = 32

type errorCounts map[string]int64

func (e errorCounts) add(err error) {
	m := err.Error()
	if _, known := e[m]; !known && len(e) >= maxErrors {
		m = "other errors"
	}
	e[m]++
}

func (g *Generator) report(started, ended time.Time, workers []*worker) *Report {
	r := &Report{Started: started.UTC(), Ended: ended.UTC(), Seed: g.opts.Seed}
	merged := map[cell]tally{}
	errs := errorCounts{}
	latency := hdrhistogram.New(1, maxLatency.Microseconds(), 3)
	for _, w := range workers {
		latency.Merge(w.latency)
		for m, n := range w.errs {
			errs[m] += n
		}
		for c, t := range w.cells {
			sum := merged[c]
			for i := range sum {
				sum[i] += t[i]
			}
			merged[c] = sum
		}
	}
	for c, t := range merged {
		counts := Counts{}
		counts.add(t)
		r.Units.add(t)
		r.Cells = append(r.Cells, Cell{g.tokens[c.token], g.opts.Resources[c.resource].Resource, c.minute, counts})
	}
	slices.SortFunc(r.Cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Minute, b.Minute))
	})
	for _, c := range r.Cells {
		if n := len(r.Tokens); n == 0 || r.Tokens[n-1].Token != c.Token {
			r.Tokens = append(r.Tokens, Usage{Token: c.Token})
		}
		u := &r.Tokens[len(r.Tokens)-1].Counts
		u.add(tally{c.Admitted, c.Rejected, c.Failed, c.Unknown})
	}
	for m, n := range errs {
		r.Errors = append(r.Errors, Failure{m, n})
	}
	slices.SortFunc(r.Errors, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Message, b.Message))
	})
	r.Requests.add(tally(g.Progress().Requests))
	if s := ended.Sub(started).Seconds(); s > 0 {
		r.AnswersPerSecond = float64(r.Requests.Admitted+r.Requests.Rejected) / s
	}
	r.Latency = Latency{
		P50: latency.ValueAtQuantile(50), P90: latency.ValueAtQuantile(90), P99: latency.ValueAtQuantile(99),
		P999: latency.ValueAtQuantile(99.9), Max: latency.Max(),
	}
	return r
}

// WriteJSON writes r for machines.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteSummary writes what people want to know first.
func (r *Report) WriteSummary(w io.Writer) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.AppendHeader(table.Row{"outcome", "requests", "units"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}})
	t.AppendRows([]table.Row{
		{"admitted", r.Requests.Admitted, r.Units.Admitted},
		{"rejected", r.Requests.Rejected, r.Units.Rejected},
		{"failed", r.Requests.Failed, r.Units.Failed},
		{"unknown", r.Requests.Unknown, r.Units.Unknown},
	})
	if _, err := fmt.Fprintf(w, "%s\n\n%.0f answers/s over %s, %d tokens\nlatency  p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n",
		t.Render(), r.AnswersPerSecond, r.Ended.Sub(r.Started).Round(time.Millisecond), len(r.Tokens),
		us(r.Latency.P50), us(r.Latency.P90), us(r.Latency.P99), us(r.Latency.P999), us(r.Latency.Max)); err != nil {
		return err
	}
	for i, f := range r.Errors {
		if i == 3 {
			_, err := fmt.Fprintf(w, "… and %d more kinds of error, see --report\n", len(r.Errors)-i)
			return err
		}
		if _, err := fmt.Fprintf(w, "%d × %s\n", f.Count, f.Message); err != nil {
			return err
		}
	}
	return nil
}

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
