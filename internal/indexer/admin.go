package indexer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/export"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
)

// Opener connects to the history, whose schema is left as it is.
type Opener func(ctx context.Context) (*history.Store, error)

// AdminCommands returns what is done to the history itself and not over HTTP:
// migrate, audit, export and erase.
func AdminCommands(open Opener) []*cobra.Command {
	return []*cobra.Command{migrateCommand(open), auditCommand(open), exportCommand(open), eraseCommand(open)}
}

// with calls f with the open history.
func with(cmd *cobra.Command, open Opener, f func(*history.Store) error) error {
	store, err := open(cmd.Context())
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

func migrateCommand(open Opener) *cobra.Command {
	var to int64
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the history's schema up to date, or to another version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd, open, func(store *history.Store) error {
				migrate := store.Migrate
				if cmd.Flags().Changed("to") {
					migrate = func(ctx context.Context) error { return store.MigrateTo(ctx, to) }
				}
				if err := migrate(cmd.Context()); err != nil {
					return err
				}
				version, err := store.SchemaVersion(cmd.Context())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "the schema is at version %d\n", version)
				return nil
			})
		},
	}
	c.Flags().Int64Var(&to, "to", 0, "this `version` instead of the latest; going back drops what came with the later ones, and what is in it")
	return c
}

// errTampered makes `audit verify` end with a failure.
var errTampered = errors.New("the audit events are not what was appended")

func auditCommand(open Opener) *cobra.Command {
	audit := &cobra.Command{Use: "audit", Short: "Check the audit events"}
	audit.AddCommand(&cobra.Command{
		Use:   "verify",
		Short: "Find every audit event that was altered, removed or put elsewhere",
		Long: "Walks along the hash chain of the audit events and names what does not fit. The head that it prints stands for all\n" +
			"events: note it elsewhere, for a chain that somebody has made anew as a whole differs only in it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd, open, func(store *history.Store) error {
				result, err := store.VerifyAudit(cmd.Context())
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				for _, f := range result.Faults {
					fmt.Fprintln(w, f)
				}
				if len(result.Faults) > 0 {
					return fmt.Errorf("%w: %d faults", errTampered, len(result.Faults))
				}
				fmt.Fprintf(w, "%d events, the chain holds, head %s\n", result.Events, result.Head)
				return nil
			})
		},
	})
	return audit
}

func eraseCommand(open Opener) *cobra.Command {
	var actor, reason string
	c := &cobra.Command{
		Use:   "erase TOKEN",
		Short: "Remove what identifies a token from the history, on request; sums stay",
		Long: "Calls the token by a random name from now on, and removes its owner, labels and what its audit events say. All sums\n" +
			"stay right, and the erasure is an audit event itself. Redis forgets the token when its keys expire.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := token.Parse(args[0])
			if err != nil {
				return err
			}
			return with(cmd, open, func(store *history.Store) error {
				name, err := store.Erase(cmd.Context(), id, actor, reason, time.Now())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "erased; its usage is now that of %s\n", name)
				return nil
			})
		},
	}
	c.Flags().StringVar(&actor, "actor", "", "who asks for it")
	c.Flags().StringVar(&reason, "reason", "", "why")
	_ = c.MarkFlagRequired("actor") // fails only for a flag that is not there
	_ = c.MarkFlagRequired("reason")
	return c
}

// exportFlags are what an export is asked for.
type exportFlags struct {
	from, to, step, format, out string
	tokens, resources           []string
}

func exportCommand(open Opener) *cobra.Command {
	var f exportFlags
	c := &cobra.Command{
		Use:   "export",
		Short: "Write usage as Parquet, CSV or JSON Lines",
		Long: "Writes usage by the minute, hour or day. To a folder (a name that ends in a slash) it writes one file per UTC day and\n" +
			"leaves finished days that are there: started again, it goes on where it broke off.",
		Example: "  indexer export --from 2026-01-01T00:00:00Z --out usage/              # a folder of Parquet files\n" +
			"  indexer export --from 2026-01-01T00:00:00Z --step 1h --out usage.csv\n  indexer export --from 2026-01-01T00:00:00Z --format jsonl | head",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := f.rows(time.Now())
			if err != nil {
				return err
			}
			format, err := f.formatOf()
			if err != nil {
				return err
			}
			return with(cmd, open, func(store *history.Store) error {
				p := newProgress(cmd, store, rows)
				defer p.done()
				switch {
				case f.out == "-":
					return export.To(cmd.Context(), cmd.OutOrStdout(), format, store, rows, p.add)
				case strings.HasSuffix(f.out, "/"):
					written, kept, err := export.ToFolder(cmd.Context(), f.out, format, store, rows, time.Now(), p.add)
					fmt.Fprintf(cmd.ErrOrStderr(), "%d files written, %d were there\n", written, kept)
					return err
				}
				return export.ToFile(cmd.Context(), f.out, format, store, rows, p.add)
			})
		},
	}
	c.Flags().StringVar(&f.from, "from", "", "begin, RFC 3339 or unix seconds")
	c.Flags().StringVar(&f.to, "to", "", "end, RFC 3339 or unix seconds (default now)")
	c.Flags().StringVar(&f.step, "step", "1m", "rows by the minute (1m), hour (1h) or day (1d); hours and days as of the last rollup")
	c.Flags().StringVar(&f.format, "format", "", "parquet, csv or jsonl (default: as the file is called, else parquet)")
	c.Flags().StringVarP(&f.out, "out", "o", "-", "`file`, folder/ or - for the standard output")
	c.Flags().StringSliceVar(&f.tokens, "token", nil, "only this token; repeat for several")
	c.Flags().StringSliceVar(&f.resources, "resource", nil, `only this resource; repeat for several, "" is the default one`)
	_ = c.MarkFlagRequired("from") // fails only for a flag that is not there
	return c
}

func (f exportFlags) rows(now time.Time) (rows history.Rows, err error) {
	if rows.From, err = parseTime(f.from); err != nil {
		return rows, fmt.Errorf("--from: %w", err)
	}
	rows.To = now
	if f.to != "" {
		if rows.To, err = parseTime(f.to); err != nil {
			return rows, fmt.Errorf("--to: %w", err)
		}
	}
	if rows.Step, err = parseDuration(f.step); err != nil {
		return rows, fmt.Errorf("--step: %w", err)
	}
	for _, text := range f.tokens {
		id, err := token.Parse(text)
		if err != nil {
			return rows, fmt.Errorf("--token: %w", err)
		}
		rows.Tokens = append(rows.Tokens, id)
	}
	for _, name := range f.resources {
		resource, err := token.ParseResource(name)
		if err != nil {
			return rows, fmt.Errorf("--resource: %w", err)
		}
		rows.Resources = append(rows.Resources, resource)
	}
	return rows, nil
}

func (f exportFlags) formatOf() (string, error) {
	format := f.format
	if format == "" {
		format = strings.TrimPrefix(filepath.Ext(f.out), ".")
		if f.out == "-" || strings.HasSuffix(f.out, "/") || format == "" {
			format = "parquet"
		}
	}
	if !slices.Contains(export.Formats, format) {
		return "", fmt.Errorf("--format: %.32q is none of %s", format, strings.Join(export.Formats, ", "))
	}
	return format, nil
}

// progress shows on a terminal how far an export is and when it will be done.
type progress struct {
	w           io.Writer // nil shows nothing
	began, last time.Time
	rows, all   int64
}

func newProgress(cmd *cobra.Command, store *history.Store, rows history.Rows) *progress {
	p := &progress{began: time.Now()}
	if f, ok := cmd.ErrOrStderr().(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.w = f
			p.all, _ = store.CountRows(cmd.Context(), rows) // 0 shows no end
		}
	}
	return p
}

func (p *progress) add(rows int) {
	p.rows += int64(rows)
	if p.w == nil || time.Since(p.last) < 200*time.Millisecond {
		return
	}
	p.last = time.Now()
	took := time.Since(p.began)
	fmt.Fprintf(p.w, "\r%d rows, %.0f/s", p.rows, float64(p.rows)/took.Seconds())
	if p.all >= p.rows {
		left := time.Duration(float64(took) / float64(p.rows) * float64(p.all-p.rows)).Round(time.Second)
		fmt.Fprintf(p.w, ", %d %%, %s left", 100*p.rows/p.all, left)
	}
	fmt.Fprint(p.w, "\x1b[K")
}

func (p *progress) done() {
	if p.w != nil {
		fmt.Fprintf(p.w, "\r%d rows in %s\x1b[K\n", p.rows, time.Since(p.began).Round(time.Millisecond))
	}
}
