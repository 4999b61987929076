package indexer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/history"
)

// Timeline is a token's whole story.
type Timeline struct {
	Account TokenAnswer   `json:"account"`
	Days    []PointAnswer `json:"days"`   // days with usage, UTC
	Events  []EventAnswer `json:"events"` // the first first
}

func historyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history TOKEN",
		Short: "Tell a token's whole story: first use, usage by day, and who did what to it, and why",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := clientOf(cmd)
			if err != nil {
				return err
			}
			story, err := tell(cmd, c, args[0])
			if err != nil {
				return err
			}
			p := pageOf(cmd)
			if p.json {
				return json.NewEncoder(p.w).Encode(story)
			}
			p.timeline(story)
			return nil
		},
	}
}

// tell gathers a token's story.
func tell(cmd *cobra.Command, c *client, name string) (Timeline, error) {
	var story Timeline
	err := fetch(cmd, c, nil, &story.Account, "tokens", name)
	if err != nil {
		return story, err
	}
	if !story.Account.First.IsZero() {
		var usage UsageAnswer
		query := url.Values{"step": {"1d"}, "from": {story.Account.First.Format(time.RFC3339)}}
		if err := fetch(cmd, c, query, &usage, "tokens", name, "usage"); err != nil {
			return story, err
		}
		story.Days = slices.DeleteFunc(usage.Points, func(p PointAnswer) bool { return p.Admitted == 0 && p.Rejected == 0 && p.Refunded == 0 })
	}
	query := url.Values{"limit": {strconv.Itoa(history.MaxPage)}}
	for {
		var events EventsAnswer
		if err := fetch(cmd, c, query, &events, "tokens", name, "events"); err != nil {
			return story, err
		}
		story.Events = append(story.Events, events.Events...)
		if events.Next == "" {
			break
		}
		query.Set("cursor", events.Next)
	}
	slices.SortStableFunc(story.Events, func(a, b EventAnswer) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq)) })
	return story, nil
}

func fetch[T any](cmd *cobra.Command, c *client, query url.Values, into *T, elements ...string) error {
	body, err := c.get(cmd.Context(), query, elements...)
	if err != nil {
		return err
	}
	*into, err = decode[T](c, body)
	return err
}

// timeline prints a story line by line, in the order of time.
func (p page) timeline(story Timeline) {
	type line struct {
		at  time.Time
		row table.Row
	}
	var lines []line
	add := func(at time.Time, what, who, why string) {
		lines = append(lines, line{at, table.Row{p.time(at), what, p.text(who), p.text(why)}})
	}
	if !story.Account.First.IsZero() {
		add(story.Account.First, "first use", "", "")
	}
	for _, d := range story.Days {
		what := fmt.Sprintf("day: %d admitted, %d rejected", d.Admitted, d.Rejected)
		if d.Refunded > 0 {
			what += fmt.Sprintf(", %d refunded", d.Refunded)
		}
		add(d.Start, what, "", "")
	}
	for _, e := range story.Events {
		what := p.text(e.Kind)
		if e.Erased {
			what += " (erased)"
		}
		if e.Before != nil {
			what += " from " + p.text(string(e.Before))
		}
		if e.After != nil {
			what += " to " + p.text(string(e.After))
		}
		add(e.At, what, e.Actor, e.Reason)
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	t, show := p.table([]any{"time", "what", "who", "why"})
	for _, l := range lines {
		t.AppendRow(l.row)
	}
	show()
	if !p.csv {
		fmt.Fprintf(p.w, "in all %d admitted, %d rejected, %d refunded\n", story.Account.Ops, story.Account.Rejected, story.Account.Refunded)
	}
}
