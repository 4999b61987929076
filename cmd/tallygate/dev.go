package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/admin"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/dashboard"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// devOptions are the flags of dev.
type devOptions struct {
	config      string
	data        string
	listen      string
	queryListen string
	debugListen string
	redis       string
	postgres    string
	load        bool
	rate        float64
	duration    time.Duration
}

func devCommand(getenv func(string) string) *cobra.Command {
	var o devOptions
	command := &cobra.Command{
		Use: "dev", Short: "Run the whole pipeline in one process", Args: cobra.NoArgs,
		Long: `Run enforcer, tracker and indexer in one process, over an in-process store and bus,
with the history in SQLite in a data folder. --redis and --postgres swap one part each
for a real server. At the end it compares what was decided with what the history holds.`,
		Example: "  tallygate dev --load\n  tallygate dev --redis redis://127.0.0.1:6379 --postgres postgres://me@127.0.0.1/tallygate",
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := config.Load(o.config, getenv)
			if err != nil {
				return err
			}
			c, err := o.configure(*loaded)
			if err != nil {
				return err
			}
			ctx := command.Context()
			if o.duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, o.duration)
				defer cancel()
			}
			return dev(ctx, o, c, loaded, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.BoolVar(&o.load, "load", false, "send a synthetic load")
	flags.Float64Var(&o.rate, "rate", 2000, "requests per second of the load; 0 is as fast as answers come")
	flags.DurationVar(&o.duration, "for", 0, "stop after this long; 0 is until Ctrl-C")
	flags.StringVar(&o.data, "data", "", "`folder` of the history (default a folder in the user's cache)")
	flags.StringVar(&o.redis, "redis", "", "`URL` of a Redis that replaces the in-process store")
	flags.StringVar(&o.postgres, "postgres", "", "`URL` of a Postgres that replaces SQLite")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` of the enforcer")
	flags.StringVar(&o.queryListen, "query-listen", "127.0.0.1:8090", "`address` of the indexer")
	flags.StringVar(&o.debugListen, "debug-listen", "127.0.0.1:9080", "`address` of metrics and profiles; empty turns them off")
	service.ConfigFlag(command, &o.config, getenv)
	return command
}

// configure returns what holds when the flags have won over the configuration.
func (o devOptions) configure(c config.Config) (*config.Config, error) {
	if o.config == "" { // policies that a synthetic load runs into
		c.Policies = map[string]config.Policy{"default": {Limits: []config.Limit{
			{Name: "minute", Algorithm: "fixed_window", Quota: 600, Window: time.Minute},
			{Name: "search", Algorithm: "fixed_window", Quota: 120, Window: time.Minute, Resources: []string{"search"}},
		}}}
		c.Log.Level = "warn" // the table is what a person wants to see
	}
	c.Redis.URL = config.SecretURL(o.redis)
	c.Enforcer.Listen, c.Indexer.Listen = o.listen, o.queryListen
	c.History.URL = config.SecretURL(o.postgres)
	if o.postgres == "" {
		data := o.data
		if data == "" {
			cache, err := os.UserCacheDir()
			if err != nil {
				return nil, fmt.Errorf("find a data folder: %w; name one with --data", err)
			}
			data = filepath.Join(cache, "tallygate", "dev")
		}
		if err := os.MkdirAll(data, 0o700); err != nil {
			return nil, fmt.Errorf("make the data folder: %w; name another with --data", err)
		}
		c.History.URL = config.SecretURL("sqlite:" + filepath.Join(data, "history.db"))
	}
	return &c, nil
}

// dev runs the pipeline until ctx ends, then drains it from front to back and
// compares both ends. Policies are reloaded from where they were loaded from.
func dev(ctx context.Context, o devOptions, c, loaded *config.Config, stdout, stderr io.Writer) error {
	s := service.New("dev", c.Log, stderr)
	service.LogRedis(s.Log)

	public, err := service.Listen(c.Enforcer.Listen, "--listen")
	if err != nil {
		return err
	}
	defer public.Close()
	query, err := service.Listen(c.Indexer.Listen, "--query-listen")
	if err != nil {
		return err
	}
	defer query.Close()
	var debug net.Listener
	if o.debugListen != "" {
		if debug, err = service.Listen(o.debugListen, "--debug-listen"); err != nil {
			return err
		}
		defer debug.Close()
	}

	kept, err := history.Open(ctx, string(c.History.URL))
	if err != nil {
		return err
	}
	defer kept.Close()
	store, err := openStore(ctx, c, s, kept)
	if err != nil {
		return err
	}
	defer store.close()
	if err := settle(ctx, store.ledger, kept); err != nil {
		return err
	}
	before, err := kept.Sum(ctx)
	if err != nil {
		return err
	}

	bus := localbus.New(0)
	settings := store.settings(bus)
	e := enforcer.New(store.decide, enforcer.Compile(c), enforcer.Options{Timeout: c.Enforcer.DecideTimeout, Settings: settings, Metrics: s.Metrics})
	steer, err := admin.Parts(c, s, settings, e)
	if err != nil {
		return err
	}
	counted := &ledger{Ledger: store.ledger}
	follow := tracker.New(store.feed, counted, bus, tracker.Options{
		FlushEvery: c.Tracker.FlushInterval, DrainTimeout: c.Tracker.DrainTimeout, Log: s.Log, Registerer: s.Metrics,
	})
	ingest := indexer.New(bus, kept, indexer.Options{Log: s.Log, Registerer: s.Metrics})
	maintain := indexer.NewMaintenance(kept, indexer.MaintenanceOptions{KeepMinutes: c.History.KeepMinutes, Log: s.Log, Registerer: s.Metrics})

	decisions, queries := http.NewServeMux(), http.NewServeMux()
	s.Health.Register(decisions)
	s.Health.Register(queries)
	e.Register(decisions)
	answers, err := indexer.Handler(kept, indexer.APIOptions{ReadTokens: c.Indexer.ReadTokens, Log: s.Log})
	if err != nil {
		return fmt.Errorf("indexer.read_tokens: %w", err)
	}
	queries.Handle("/v1/", answers)

	pages := dashboard.FromConfig(c, kept, s.Log)
	pages.Version, pages.Stopping = service.Version(), s.Health.Draining()
	board, err := dashboard.New(pages)
	if err != nil {
		return err
	}
	queries.Handle("/", board)

	view := newScreen(stdout, e, kept)
	parts := []service.Part{{Name: "screen", Run: view.run}}
	if o.load {
		generator, err := newLoad(public.Addr().String(), o.rate)
		if err != nil {
			return err
		}
		parts = append(parts, service.Part{Name: "load", Run: generator})
	}
	if o.config != "" {
		parts = append(parts, s.Reload(loaded, func(changed *config.Config) { e.SetPolicies(enforcer.Compile(changed)) }))
	}
	parts = append(parts, steer...)
	parts = append(
		parts,
		service.Part{Name: "settings", Run: e.Run},
		s.Serve("enforcer", public, decisions, c.Enforcer.DrainTimeout),
		service.Part{Name: "counters", Run: store.drain},
		service.Part{Name: "tracker", Run: follow.Run},
		service.Part{Name: "events", Run: store.events(bus)},
		service.Part{Name: "indexer", Run: func(ctx context.Context) error {
			// The tracker has stopped when ctx ends: nothing more is published, and
			// what the bus still holds is ingested before Run returns.
			defer context.AfterFunc(ctx, bus.Close)()
			linger, cancel := service.Linger(ctx, c.Indexer.DrainTimeout)
			defer cancel()
			return ingest.Run(linger)
		}},
		service.Part{Name: "maintenance", Run: maintain.Run},
		s.Serve("query", query, queries, c.Indexer.DrainTimeout),
		service.Part{Name: "dashboard", Run: board.Run},
	)
	if debug != nil {
		parts = append(parts, s.Serve("debug", debug, service.DebugHandler(s.Metrics), time.Second))
	}
	welcome(stdout, public.Addr(), query.Addr(), debug, store.name, c.History.URL)
	err = service.Run(ctx, parts...)

	// ctx has ended, and the account is what remains to be done.
	account, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if taken, failed := takeAccount(account, e, counted, kept, before); failed != nil {
		err = errors.Join(err, failed)
	} else {
		err = errors.Join(err, view.paint(account), taken.print(stdout))
	}
	return err
}

func welcome(w io.Writer, public, query net.Addr, debug net.Listener, store string, history config.SecretURL) {
	fmt.Fprintf(w, "enforcer  http://%s    counters %s\nindexer   http://%s    history %s\ndashboard http://%[3]s/\n", public, store, query, history)
	if debug != nil {
		fmt.Fprintf(w, "metrics   http://%s/metrics\n", debug.Addr())
	}
	fmt.Fprintf(w, `
Try, in another terminal:
  curl -i -d '{"token":"alice","resource":"search"}' http://%s/v1/decide
  curl 'http://%s/v1/tokens?sort=-ops&limit=10'
  curl http://%[2]s/v1/tokens/alice

`, public, query)
}
