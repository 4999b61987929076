package indexer

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
)

// Commands returns the terminal's questions: top, token and usage. They ask an
// indexer over HTTP and print to the command's output.
func Commands() []*cobra.Command {
	commands := []*cobra.Command{topCommand(), tokenCommand(), usageCommand()}
	for _, c := range commands {
		c.Flags().String("server", DefaultServer, "`URL` of the indexer's query API")
		c.Flags().Bool("json", false, "print the API's answer instead of a table")
		c.SilenceUsage = true // a failed query is no misuse
	}
	return commands
}

// ask sends the query of a command and prints the answer: as it is with --json,
// else with show.
func ask[T any](cmd *cobra.Command, query url.Values, show func(io.Writer, T), elements ...string) error {
	server, _ := cmd.Flags().GetString("server")
	c, err := newClient(server)
	if err != nil {
		return err
	}
	body, err := c.get(cmd.Context(), query, elements...)
	if err != nil {
		return err
	}
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		_, err = cmd.OutOrStdout().Write(body)
		return err
	}
	var answer T
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the server at %s gave an answer that is not the query API's: %w", server, err)
	}
	show(cmd.OutOrStdout(), answer)
	return nil
}

func topCommand() *cobra.Command {
	var by string
	var limit int
	c := &cobra.Command{
		Use:     "top",
		Short:   "List the tokens with the highest usage",
		Example: "  indexer top\n  indexer top --by rejected --limit 5\n  indexer top --by first    # the oldest first",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sort := "-" + by
			if by == "first" || by == "token" {
				sort = by
			}
			return ask(cmd, url.Values{"sort": {sort}, "limit": {strconv.Itoa(limit)}}, func(w io.Writer, a TokensAnswer) {
				showTokens(w, a.Tokens)
			}, "tokens")
		},
	}
	c.Flags().StringVar(&by, "by", "ops", "what to sort by: ops, rejected, refunded, last (most recent first), first (oldest first) or token")
	c.Flags().IntVarP(&limit, "limit", "n", 10, "how many tokens")
	return c
}

func tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token TOKEN",
		Short: "Show a token's account",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, nil, func(w io.Writer, a TokenAnswer) { showTokens(w, []TokenAnswer{a}) }, "tokens", args[0])
		},
	}
}

func usageCommand() *cobra.Command {
	var since, from, to, step string
	var resources []string
	c := &cobra.Command{
		Use:     "usage TOKEN",
		Short:   "Show a token's usage over time",
		Example: "  indexer usage alice --since 24h --step 1h\n  indexer usage alice --resource search --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"step": {step}}
			if cmd.Flags().Changed("resource") {
				query["resource"] = resources
			}
			end := time.Now()
			if to != "" {
				t, err := parseTime(to)
				if err != nil {
					return fmt.Errorf("--to: %w", err)
				}
				end = t
			}
			query.Set("to", end.UTC().Format(time.RFC3339))
			if from != "" {
				query.Set("from", from)
			} else {
				d, err := parseDuration(since)
				if err != nil {
					return fmt.Errorf("--since: %w", err)
				}
				query.Set("from", end.Add(-d).UTC().Format(time.RFC3339))
			}
			return ask(cmd, query, showUsage, "tokens", args[0], "usage")
		},
	}
	c.Flags().StringVar(&since, "since", "1h", "how far to look back, e.g. 30m, 24h, 7d")
	c.Flags().StringVar(&from, "from", "", "begin, RFC 3339 or unix seconds (instead of --since)")
	c.Flags().StringVar(&to, "to", "", "end, RFC 3339 or unix seconds (default now)")
	c.Flags().StringVar(&step, "step", "1m", "length of a row, whole minutes")
	c.Flags().StringSliceVar(&resources, "resource", nil, `only this resource; repeat for several, "" is the default one`)
	c.MarkFlagsMutuallyExclusive("since", "from")
	return c
}

func newTable(w io.Writer, numbers ...string) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatDefault
	configs := make([]table.ColumnConfig, len(numbers))
	for i, name := range numbers {
		configs[i] = table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight}
	}
	t.SetColumnConfigs(configs)
	return t
}

func showTokens(w io.Writer, tokens []TokenAnswer) {
	t := newTable(w, "ops", "rejected", "refunded")
	t.AppendHeader(table.Row{"token", "ops", "rejected", "refunded", "first use", "last use"})
	for _, a := range tokens {
		t.AppendRow(table.Row{printable(a.Token), a.Ops, a.Rejected, a.Refunded, showTime(a.First), showTime(a.Last)})
	}
	t.Render()
}

func showUsage(w io.Writer, a UsageAnswer) {
	admitted, rejected := make([]int64, len(a.Points)), make([]int64, len(a.Points))
	var sumAdmitted, sumRejected int64
	t := newTable(w, "admitted", "rejected", "refunded")
	t.AppendHeader(table.Row{"from", "admitted", "rejected", "refunded"})
	for i, p := range a.Points {
		admitted[i], rejected[i] = p.Admitted, p.Rejected
		sumAdmitted += p.Admitted
		sumRejected += p.Rejected
		if p.Admitted != 0 || p.Rejected != 0 || p.Refunded != 0 {
			t.AppendRow(table.Row{showTime(p.Start), p.Admitted, p.Rejected, p.Refunded})
		}
	}
	fmt.Fprintf(w, "%s, %d steps of %s\n", printable(a.Token), len(a.Points), showStep(a.StepS))
	fmt.Fprintf(w, "admitted %s %d\nrejected %s %d\n", sparkline(admitted), sumAdmitted, sparkline(rejected), sumRejected)
	if t.Length() > 0 {
		t.Render()
	}
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

func showTime(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// printable returns a token's text such that it cannot steer the terminal.
func printable(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
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
