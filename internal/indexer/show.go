package indexer

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
)

// page is where a command prints, and how.
type page struct {
	w         io.Writer
	json, csv bool
}

func pageOf(cmd *cobra.Command) page {
	p := page{w: cmd.OutOrStdout()}
	p.json, _ = cmd.Flags().GetBool("json")
	p.csv, _ = cmd.Flags().GetBool("csv")
	return p
}

// table returns a table with these columns; those that are named again are
// numbers. show prints it.
func (p page) table(columns []any, numbers ...string) (t table.Writer, show func()) {
	t = table.NewWriter()
	t.SetOutputMirror(p.w)
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatDefault
	configs := make([]table.ColumnConfig, len(numbers))
	for i, name := range numbers {
		configs[i] = table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight}
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(columns)
	return t, func() {
		if p.csv {
			t.RenderCSV()
		} else {
			t.Render()
		}
	}
}

func (p page) tokens(a TokensAnswer) {
	t, show := p.table([]any{"token", "ops", "rejected", "refunded", "first use", "last use"}, "ops", "rejected", "refunded")
	for _, a := range a.Tokens {
		t.AppendRow(table.Row{p.text(a.Token), a.Ops, a.Rejected, a.Refunded, p.time(a.First), p.time(a.Last)})
	}
	show()
}

func (p page) groups(a GroupsAnswer) {
	t, show := p.table([]any{"value", "tokens", "ops", "rejected", "refunded"}, "tokens", "ops", "rejected", "refunded")
	for _, g := range a.Groups {
		value := p.text(g.Value)
		if value == "" && !p.csv {
			value = "(none)"
		}
		t.AppendRow(table.Row{value, g.Tokens, g.Ops, g.Rejected, g.Refunded})
	}
	show()
}

func (p page) usage(a UsageAnswer) {
	admitted, rejected := make([]int64, len(a.Points)), make([]int64, len(a.Points))
	var sumAdmitted, sumRejected int64
	t, show := p.table([]any{"from", "admitted", "rejected", "refunded"}, "admitted", "rejected", "refunded")
	for i, pt := range a.Points {
		admitted[i], rejected[i] = pt.Admitted, pt.Rejected
		sumAdmitted += pt.Admitted
		sumRejected += pt.Rejected
		if p.csv || pt.Admitted != 0 || pt.Rejected != 0 || pt.Refunded != 0 {
			t.AppendRow(table.Row{p.time(pt.Start), pt.Admitted, pt.Rejected, pt.Refunded})
		}
	}
	if !p.csv {
		average := float64(sumAdmitted) / float64(max(len(a.Points), 1))
		fmt.Fprintf(p.w, "%s, %d steps of %s, %.1f admitted in one on average\n", p.text(a.Token), len(a.Points), showStep(a.StepS), average)
		fmt.Fprintf(p.w, "admitted %s %d\nrejected %s %d\n", sparkline(admitted), sumAdmitted, sparkline(rejected), sumRejected)
	}
	if p.csv || t.Length() > 0 {
		show()
	}
}

func (p page) time(t time.Time) string {
	switch {
	case t.IsZero() && p.csv:
		return ""
	case t.IsZero():
		return "–"
	case p.csv:
		return t.UTC().Format(time.RFC3339)
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// text returns what somebody else wrote such that it cannot steer the terminal.
func (p page) text(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` && !p.csv {
		return quoted
	}
	return s
}

// showStep returns a step's length without the zero parts that time.Duration prints.
func showStep(seconds int64) string {
	s := (time.Duration(seconds) * time.Second).String()
	if short, ok := strings.CutSuffix(s, "m0s"); ok {
		s = short + "m"
	}
	if short, ok := strings.CutSuffix(s, "h0m"); ok {
		s = short + "h"
	}
	return s
}

// maxSparkline is how many characters a sparkline has at most.
const maxSparkline = 60

// sparkline draws values as a row of bars, the highest one full; 0 is a gap. Too
// many values are summed up in groups.
func sparkline(values []int64) string {
	group := max((len(values)+maxSparkline-1)/maxSparkline, 1)
	var sums []int64
	for i := 0; i < len(values); i += group {
		var sum int64
		for _, v := range values[i:min(i+group, len(values))] {
			sum += v
		}
		sums = append(sums, sum)
	}
	var highest int64 = 1
	for _, v := range sums {
		highest = max(highest, v)
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range sums {
		if v <= 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(bars[int(float64(v)/float64(highest)*float64(len(bars)-1))])
	}
	return b.String()
}
