package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/load"
)

const topTokens = 10

// screen shows the top tokens: repainted every second on a terminal, printed
// anew every ten seconds elsewhere.
type screen struct {
	out      io.Writer
	enforcer *enforcer.Enforcer
	history  *history.Store
	terminal bool
	began    time.Time
	painted  int // lines on the terminal
}

func newScreen(out io.Writer, e *enforcer.Enforcer, kept *history.Store) *screen {
	s := &screen{out: out, enforcer: e, history: kept, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		s.terminal = term.IsTerminal(int(f.Fd()))
	}
	return s
}

func (s *screen) run(ctx context.Context) error {
	every := 10 * time.Second
	if s.terminal {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.paint(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (s *screen) paint(ctx context.Context) error {
	tokens, _, err := s.history.Tokens(ctx, history.Page{Limit: topTokens})
	if err != nil {
		return err
	}
	if len(tokens) == 0 {
		return nil
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"token", "admitted", "rejected", "last use"})
	for _, token := range tokens {
		last := "never"
		if token.Last > 0 {
			last = time.Unix(token.Last, 0).Format(time.TimeOnly)
		}
		t.AppendRow(table.Row{printable(token.ID.Text()), token.Ops, token.Rejected, last})
	}
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 1, WidthMax: 40, WidthMaxEnforcer: text.Trim}})
	units := s.enforcer.Units()
	view := fmt.Sprintf("%s\n%v   this run: %d admitted, %d rejected units\n", t.Render(), time.Since(s.began).Round(time.Second), units.Admitted, units.Rejected)
	if s.terminal {
		if s.painted > 0 {
			view = fmt.Sprintf("\x1b[%dA\x1b[J", s.painted) + view
		}
		s.painted = strings.Count(view, "\n")
	}
	_, err = io.WriteString(s.out, view)
	return err
}

// printable keeps a token's control characters from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '�'
		}
		return r
	}, s)
}

// newLoad returns a part that asks the enforcer at address until its context ends.
func newLoad(address string, rate float64) (func(ctx context.Context) error, error) {
	const workers = 32
	decider, err := load.NewEnforcer([]string{"http://" + address}, workers, 5*time.Second)
	if err != nil {
		return nil, err
	}
	generator, err := load.New(decider, load.Options{
		Concurrency: workers, Rate: rate, Duration: math.MaxInt64, Tokens: 500, Zipf: 1.1, Seed: 1,
		Resources: []load.Choice{{Resource: "search", Weight: 3}, {Resource: "export", Weight: 1}, {Weight: 6}},
		Costs:     []load.Cost{{Units: 1, Weight: 9}, {Units: 5, Weight: 1}},
	})
	if err != nil {
		decider.Close()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer decider.Close()
		generator.Run(ctx)
		return nil
	}, nil
}
