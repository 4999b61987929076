package indexer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Commands returns the terminal's questions. They ask an indexer over HTTP and
// print to the command's output.
func Commands() []*cobra.Command {
	commands := []*cobra.Command{topCommand(), findCommand(), tokenCommand(), usageCommand(), historyCommand()}
	for _, c := range commands {
		c.Flags().String("server", DefaultServer, "`URL` of the indexer's query API")
		c.Flags().String("bearer-file", "", "`file` with the read token, where the indexer wants one")
		c.Flags().Bool("json", false, "print the API's answer instead of a table")
		c.Flags().Bool("csv", false, "print comma-separated values instead of a table")
		c.MarkFlagsMutuallyExclusive("json", "csv")
		c.SilenceUsage = true // a failed query is no misuse
	}
	return commands
}

// clientOf returns the client that a command's flags ask for.
func clientOf(cmd *cobra.Command) (*client, error) {
	server, _ := cmd.Flags().GetString("server")
	c, err := newClient(server)
	if err != nil {
		return nil, err
	}
	if path, _ := cmd.Flags().GetString("bearer-file"); path != "" {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--bearer-file: %w", err)
		}
		c.bearer = strings.TrimSpace(string(content))
	}
	return c, nil
}

// ask sends the query of a command and prints the answer: as it is with --json,
// else with show.
func ask[T any](cmd *cobra.Command, query url.Values, show func(page, T), elements ...string) error {
	c, err := clientOf(cmd)
	if err != nil {
		return err
	}
	body, err := c.get(cmd.Context(), query, elements...)
	if err != nil {
		return err
	}
	p := pageOf(cmd)
	if p.json {
		_, err = p.w.Write(body)
		return err
	}
	answer, err := decode[T](c, body)
	if err != nil {
		return err
	}
	show(p, answer)
	return nil
}

func decode[T any](c *client, body []byte) (T, error) {
	var answer T
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("the server at %s gave an answer that is not the query API's: %w", c.server, err)
	}
	return answer, nil
}

func topCommand() *cobra.Command {
	var by, since string
	var limit int
	var watch time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "List the tokens with the highest usage, ever or of late",
		Example: "  indexer top\n  indexer top --by rejected --since 1h\n  indexer top --since 1m --watch 2s   # who is busy now\n" +
			"  indexer top --by first              # the oldest first",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			once := func() error {
				if since != "" {
					return ask(cmd, url.Values{"by": {by}, "since": {since}, "limit": {strconv.Itoa(limit)}}, page.tokens, "top")
				}
				sort := "-" + by
				if by == "first" || by == "token" {
					sort = by
				}
				return ask(cmd, url.Values{"sort": {sort}, "limit": {strconv.Itoa(limit)}}, page.tokens, "tokens")
			}
			if watch > 0 {
				return repeat(cmd, watch, once)
			}
			return once()
		},
	}
	c.Flags().StringVar(&by, "by", "ops", "what to sort by: ops, rejected, refunded, last (most recent first), first (oldest first) or token; with a search index also rate, peak, percent")
	c.Flags().StringVar(&since, "since", "", "count only usage since this long ago, e.g. 1m, 24h, 7d (default ever)")
	c.Flags().IntVarP(&limit, "limit", "n", 10, "how many tokens")
	c.Flags().DurationVar(&watch, "watch", 0, "show it again and again, with this pause")
	return c
}

// repeat calls once with a pause, on a cleared screen, until the context ends.
func repeat(cmd *cobra.Command, pause time.Duration, once func() error) error {
	w := cmd.OutOrStdout()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		var screen bytes.Buffer // shown at once, without flicker
		cmd.SetOut(&screen)
		err := once()
		cmd.SetOut(w)
		if cmd.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "\x1b[H\x1b[2J%s", screen.Bytes()); err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

func findCommand() *cobra.Command {
	var limit int
	var by string
	c := &cobra.Command{
		Use:     "find QUERY",
		Short:   "List the tokens that a query asks for, or their sums",
		Example: "  indexer find 'owner:acme -status:blocked ops>1k last<7d sort:-rejected'\n  indexer find 'last<1d' --group policy",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if by != "" {
				return ask(cmd, url.Values{"q": {args[0]}, "by": {by}}, page.groups, "groups")
			}
			return ask(cmd, url.Values{"q": {args[0]}, "limit": {strconv.Itoa(limit)}}, page.tokens, "tokens")
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 20, "how many tokens")
	c.Flags().StringVar(&by, "group", "", "add the tokens up by policy, owner or status")
	return c
}

func tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token TOKEN",
		Short: "Show a token's account",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, nil, func(p page, a TokenAnswer) { p.tokens(TokensAnswer{Tokens: []TokenAnswer{a}}) }, "tokens", args[0])
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
			return ask(cmd, query, page.usage, "tokens", args[0], "usage")
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
