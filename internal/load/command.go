package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// PasswordEnv is the environment variable that holds the password of the classic
// recipe's Redis when --password is not given. It is the one that redis-cli reads.
const PasswordEnv = "REDISCLI_AUTH"

// flags of the command beside Options.
type flags struct {
	Options
	targets        []string
	classic        bool
	host           string
	port           int
	user, password string
	namespace      string
	threshold      int64
	timeout        time.Duration
	resources      []string
	costs          []string
	report         string
	allowRemote    bool
}

// Command returns the load command. It reads PasswordEnv through getenv.
func Command(getenv func(string) string) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Generate load against an enforcer, or against Redis as the classic recipe does",
		Long: `Generate load and keep an account of it.

Against enforcers (--target), or straight to Redis as an application that follows the
classic recipe does (--classic): GET, then MULTI, INCR, EXPIRE 59, EXEC on
{api:TOKEN}:MINUTE. Naming a Redis with --host, --port, --user, --password or
--threshold means --classic.

The report (--report) holds admitted and rejected units per token, and per token,
resource and minute. A request without an answer that may have been counted all the
same is reported as unknown, never as admitted.`,
		Example: `  tallygate load --target http://127.0.0.1:8080 --concurrency 64 --duration 30s --zipf 1.1
  tallygate load --resources search=9,export=1 --costs 1=8,5=2 --report run.json
  tallygate load --host 127.0.0.1 --port 6379 --concurrency 3 --threshold 100`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd, getenv); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&f.targets, "target", []string{"http://127.0.0.1:8080"}, "address of an enforcer; several are asked in turn")
	fs.BoolVar(&f.classic, "classic", false, "straight to Redis with the classic recipe, without an enforcer")
	fs.StringVar(&f.host, "host", "127.0.0.1", "host of the classic recipe's Redis")
	fs.IntVarP(&f.port, "port", "p", 6379, "port of the classic recipe's Redis")
	fs.StringVarP(&f.user, "user", "u", "", "user of the classic recipe's Redis")
	fs.StringVarP(&f.password, "password", "P", "", "its password; better in the environment variable "+PasswordEnv)
	fs.StringVar(&f.namespace, "namespace", "api", "first word of the hash tag of the classic recipe's keys")
	fs.Int64VarP(&f.threshold, "threshold", "t", 100, "units per token and minute that the classic recipe allows")
	fs.IntVarP(&f.Concurrency, "concurrency", "c", 16, "requests under way at the same time")
	fs.Int64VarP(&f.Iterations, "iterations", "i", 0, "requests per unit of concurrency (default 1000, unbounded with --duration)")
	fs.DurationVar(&f.Duration, "duration", 0, "how long to send")
	fs.Float64Var(&f.Rate, "rate", 0, "requests per second in all (default as fast as answers come)")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Second, "after which a request without an answer is given up as unknown")
	fs.IntVar(&f.Tokens, "tokens", 100, "how many tokens to use")
	fs.StringVar(&f.TokenPrefix, "token-prefix", "load-", "what the tokens begin with")
	fs.Float64Var(&f.Zipf, "zipf", 0, "exponent above 1 of the tokens' popularity, e.g. 1.1 (default all alike)")
	fs.Uint64Var(&f.Seed, "seed", 1, "chooses tokens, resources and costs; the same seed makes the same requests")
	fs.StringSliceVar(&f.resources, "resources", nil, "resources with weights, e.g. search=9,export=1 (default the default resource)")
	fs.StringSliceVar(&f.costs, "costs", nil, "units per request with weights, e.g. 1=8,5=2 (default 1)")
	fs.StringVar(&f.Policy, "policy", "", "policy of every request (default the enforcer's)")
	fs.StringVar(&f.report, "report", "", "file to write the account to, as JSON; - for standard output instead of the summary")
	fs.BoolVar(&f.allowRemote, "allow-remote", false, "allow targets that are not on this machine")
	return cmd
}

// complete derives what the flags leave open and refuses what contradicts itself.
func (f *flags) complete(cmd *cobra.Command, getenv func(string) string) error {
	for _, name := range []string{"host", "port", "user", "password", "threshold", "namespace"} {
		f.classic = f.classic || cmd.Flags().Changed(name)
	}
	if f.classic && cmd.Flags().Changed("target") {
		return errors.New("--target asks an enforcer, and --classic, --host, --port, --user, --password, --namespace and --threshold go straight to Redis: give one or the other (an enforcer's thresholds are its policies)")
	}
	if f.classic && (len(f.resources) > 0 || f.Policy != "") {
		return errors.New("the classic recipe knows neither resources nor policies: leave out --resources and --policy, or use --target")
	}
	if f.password == "" {
		f.password = getenv(PasswordEnv)
	}
	if f.Concurrency < 1 {
		return fmt.Errorf("--concurrency is %d: use 1 or more", f.Concurrency)
	}
	if f.Tokens < 1 {
		return fmt.Errorf("--tokens is %d: use 1 or more", f.Tokens)
	}
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout is %s: use a positive duration", f.timeout)
	}
	for _, s := range f.resources {
		name, weight, err := weighted(s)
		if err != nil {
			return fmt.Errorf("--resources: %w", err)
		}
		f.Resources = append(f.Resources, Choice{name, weight})
	}
	for _, s := range f.costs {
		text, weight, err := weighted(s)
		if err != nil {
			return fmt.Errorf("--costs: %w", err)
		}
		units, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("--costs: %q is no number of units", text)
		}
		f.Costs = append(f.Costs, Cost{units, weight})
	}
	return f.checkLocal()
}

// weighted parses value=weight; the weight is 1 when it is left out.
func weighted(s string) (value string, weight int, err error) {
	i := strings.LastIndexByte(s, '=')
	if i < 0 {
		return s, 1, nil
	}
	if weight, err = strconv.Atoi(s[i+1:]); err != nil || weight < 1 {
		return "", 0, fmt.Errorf("%q: the weight after = must be a whole number of 1 or more", s)
	}
	return s[:i], weight, nil
}

// checkLocal refuses targets elsewhere, so that a slip of the finger does not
// flood somebody's production.
func (f *flags) checkLocal() error {
	if f.allowRemote {
		return nil
	}
	hosts := []string{f.host}
	if !f.classic {
		hosts = hosts[:0]
		for _, target := range f.targets {
			if u, err := url.Parse(target); err == nil { // NewEnforcer tells what is wrong with the others
				hosts = append(hosts, u.Hostname())
			}
		}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); host != "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("%q is not on this machine: add --allow-remote if you really mean to load it", host)
		}
	}
	return nil
}

func (f *flags) decider() (Decider, func(), error) {
	if f.classic {
		client := redis.NewClient(&redis.Options{
			Addr: net.JoinHostPort(f.host, strconv.Itoa(f.port)), Username: f.user, Password: f.password,
			ClientName: "tallygate-load", PoolSize: f.Concurrency, MaxRetries: -1, DialerRetries: 1,
			DialTimeout: f.timeout, ReadTimeout: f.timeout, WriteTimeout: f.timeout,
		})
		return NewClassic(client, f.namespace, f.threshold), func() { _ = client.Close() }, nil
	}
	e, err := NewEnforcer(f.targets, f.Concurrency, f.timeout)
	if err != nil {
		return nil, nil, err
	}
	return e, e.Close, nil
}

func (f *flags) run(ctx context.Context, stdout, stderr io.Writer) error {
	decider, closeDecider, err := f.decider()
	if err != nil {
		return err
	}
	defer closeDecider()
	g, err := New(decider, f.Options)
	if err != nil {
		return err
	}
	stop := showProgress(stderr, g, f.Duration)
	report := g.Run(ctx)
	stop()
	if err := f.write(report, stdout); err != nil {
		return err
	}
	if n := report.Requests; n.Admitted+n.Rejected == 0 && n.Failed+n.Unknown > 0 {
		return fmt.Errorf("not one of %d requests was answered: %s", n.Failed+n.Unknown, report.Errors[0].Message)
	}
	return nil
}

func (f *flags) write(report *Report, stdout io.Writer) error {
	if f.report == "-" {
		return report.WriteJSON(stdout)
	}
	if f.report != "" {
		file, err := os.Create(f.report)
		if err != nil {
			return fmt.Errorf("--report: %w", err)
		}
		if err := errors.Join(report.WriteJSON(file), file.Close()); err != nil {
			return fmt.Errorf("--report %s: %w", f.report, err)
		}
	}
	return report.WriteSummary(stdout)
}

// showProgress draws a bar while g runs, if w is a terminal, and returns what
// removes it.
func showProgress(w io.Writer, g *Generator, duration time.Duration) (stop func()) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	// Whichever is known bounds the bar: requests, or else milliseconds.
	tracker := &progress.Tracker{Message: "asking", Total: g.Progress().Total}
	byTime := tracker.Total == 0
	if byTime {
		tracker.Total = duration.Milliseconds()
	}
	bar := progress.NewWriter()
	bar.SetOutputWriter(w)
	bar.SetUpdateFrequency(100 * time.Millisecond)
	bar.SetAutoStop(true)
	bar.Style().Visibility.Value = !byTime
	bar.AppendTracker(tracker)
	started, done, drawn := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drawn)
		bar.Render()
	}()
	updated := make(chan struct{})
	go func() {
		defer close(updated)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			p := g.Progress()
			value := p.Done()
			if byTime {
				value = time.Since(started).Milliseconds()
			}
			tracker.UpdateMessage(fmt.Sprintf("%d admitted, %d rejected, %d failed, %d unknown", p.Requests[0], p.Requests[1], p.Requests[2], p.Requests[3]))
			tracker.SetValue(min(value, tracker.Total-1)) // Run's end is the end
		}
	}()
	return func() {
		close(done)
		<-updated
		tracker.MarkAsDone()
		<-drawn
	}
}
