package endtoend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// running is a load under way.
type running struct {
	t      testing.TB
	g      *load.Generator
	stop   context.CancelFunc
	ended  chan struct{} // closed when report is set
	report *load.Report
	seen   *witness
}

// load starts load on decider; end it with finish.
func (p *pipeline) load(decider load.Decider, opts load.Options) *running {
	p.t.Helper()
	r := &running{t: p.t, seen: &witness{decider: decider}, ended: make(chan struct{})}
	opts.Iterations = 1 << 40 // until finish
	g, err := load.New(r.seen, opts)
	if err != nil {
		p.t.Fatal(err)
	}
	r.g = g
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	p.t.Cleanup(cancel)
	go func() {
		defer close(r.ended)
		r.report = g.Run(ctx)
	}()
	return r
}

// enforcedLoad starts load against all enforcers in turn: a few busy tokens that
// run into their limits, many that do not, three resources, costs of 1 to 7.
func (p *pipeline) enforcedLoad() *running {
	p.t.Helper()
	var targets []string
	for _, s := range p.enforcers {
		targets = append(targets, s.url(""))
	}
	e, err := load.NewEnforcer(targets, 16, 10*time.Second)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(e.Close)
	return p.load(e, load.Options{
		Concurrency: 16, Rate: 3000, Seed: 7, Tokens: 300, Zipf: 1.2,
		Resources: []load.Choice{{Resource: "", Weight: 2}, {Resource: "search", Weight: 2}, {Resource: "export", Weight: 1}},
		Costs:     []load.Cost{{Units: 1, Weight: 8}, {Units: 7, Weight: 1}},
	})
}

const classicPrefix = "classic-" // of the tokens of classicLoad

// classicLoad starts the load of an application that follows the classic recipe and
// has never heard of us.
func (p *pipeline) classicLoad() *running {
	p.t.Helper()
	var client redis.UniversalClient
	if p.cluster != nil {
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.cluster.Addrs()})
	} else {
		client = redis.NewClient(&redis.Options{Addr: p.redis.Addr, MaxRetries: -1})
	}
	p.t.Cleanup(func() { _ = client.Close() })
	return p.load(load.NewClassic(client, "api", 50), load.Options{
		Concurrency: 4, Rate: 200, Seed: 8, Tokens: 40, TokenPrefix: classicPrefix,
	})
}

// until waits for n more requests to be over.
func (r *running) until(n int64) {
	r.t.Helper()
	from := r.g.Progress().Done()
	eventually(r.t, 30*time.Second, func(context.Context) error {
		if done := r.g.Progress().Done() - from; done < n {
			return fmt.Errorf("%d of %d requests done", done, n)
		}
		return nil
	})
}

// finish ends the load, if it has not ended yet, and returns its account.
func (r *running) finish() *load.Report {
	r.stop()
	<-r.ended
	return r.report
}

// witness passes requests on and remembers what was admitted when.
type witness struct {
	decider load.Decider
	mu      sync.Mutex
	seen    []admission
}

type admission struct {
	token, resource string
	at              int64 // unix ms by Redis's clock
	units           int64
}

func (w *witness) Decide(ctx context.Context, r load.Request) (load.Answer, error) {
	a, err := w.decider.Decide(ctx, r)
	if err == nil && a.Outcome == quota.Admitted {
		w.mu.Lock()
		w.seen = append(w.seen, admission{r.Token, r.Resource, a.At, r.Cost})
		w.mu.Unlock()
	}
	return a, err
}

// checkQuotas asserts that no window of any limit got more than it allows.
func (w *witness) checkQuotas(t testing.TB) {
	t.Helper()
	byToken := map[string][]admission{}
	for _, a := range w.seen {
		if a.at == 0 {
			t.Fatal("an answer does not say when it was decided")
		}
		byToken[a.token] = append(byToken[a.token], a)
	}
	for _, seen := range byToken {
		slices.SortFunc(seen, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
		for _, l := range limits {
			var of []admission
			for _, a := range seen {
				if l.resource == "" || l.resource == a.resource {
					of = append(of, a)
				}
			}
			got, length, most := fullestWindow(of, l.window), l.window, l.quota
			if l.span > 0 {
				length = l.span - clockTolerance
				got, most = fullestSpan(of, length), l.most
			}
			if got > most {
				t.Errorf("limit %s: %s got %d units within %s, at most %d are allowed", l.name, of[0].token, got, length, most)
			}
		}
	}
}

// clockTolerance is by how much two enforcers may read Redis's clock differently on
// a busy machine. Aligned windows do not mind: a unit is in the window that its
// answer names.
const clockTolerance = 50 * time.Millisecond

// fullestWindow returns the most units in any window aligned to the epoch.
func fullestWindow(seen []admission, window time.Duration) (fullest int64) {
	used := map[int64]int64{}
	for _, a := range seen {
		begin := a.at - a.at%window.Milliseconds()
		used[begin] += a.units
		fullest = max(fullest, used[begin])
	}
	return fullest
}

// fullestSpan returns the most units in any span [t, t+length) of admissions that
// are sorted by time.
func fullestSpan(seen []admission, length time.Duration) (fullest int64) {
	var used int64
	first := 0
	for _, a := range seen {
		used += a.units
		for seen[first].at <= a.at-length.Milliseconds() {
			used -= seen[first].units
			first++
		}
		fullest = max(fullest, used)
	}
	return fullest
}

// units is what an account says of one token.
type units struct{ admitted, rejected int64 }

// cell is what an account says of one token, resource and minute.
type cell struct {
	token, resource string
	minute          int64
}

// account is units per token and per cell, by whomever keeps it.
type account struct {
	tokens map[string]units
	cells  map[cell]units
}

// reported is the generator's account. A token without any units is not in it.
func reported(reports ...*load.Report) account {
	a := account{map[string]units{}, map[cell]units{}}
	for _, r := range reports {
		for _, u := range r.Tokens {
			if u.Admitted+u.Rejected > 0 {
				a.tokens[u.Token] = units{u.Admitted, u.Rejected}
			}
		}
		for _, c := range r.Cells {
			if c.Admitted+c.Rejected > 0 {
				a.cells[cell{c.Token, c.Resource, c.Minute}] = units{c.Admitted, c.Rejected}
			}
		}
	}
	return a
}

// inRedis is the account of the metadata hashes. They have no cells.
func (p *pipeline) inRedis(ctx context.Context) (account, error) {
	a := account{tokens: map[string]units{}}
	if p.cluster == nil {
		return a, p.addMetadata(ctx, p.client, a)
	}
	for _, node := range p.cluster.Nodes {
		client := redis.NewClient(&redis.Options{Addr: node.Addr})
		err := p.addMetadata(ctx, client, a)
		if err := errors.Join(err, client.Close()); err != nil {
			return account{}, err
		}
	}
	return a, nil
}

// addMetadata adds the hashes of one server to a.
func (p *pipeline) addMetadata(ctx context.Context, server redis.Cmdable, a account) error {
	keys := server.Scan(ctx, 0, "{api:*}:data", 1000).Iterator()
	for keys.Next(ctx) {
		hash, err := p.client.HGetAll(ctx, keys.Val()).Result()
		if err != nil {
			return err
		}
		m, err := metadata.Parse(hash)
		if err != nil {
			return err
		}
		id, err := token.FromTag(strings.TrimSuffix(strings.TrimPrefix(keys.Val(), "{api:"), "}:data"))
		if err != nil {
			return err
		}
		a.tokens[id.Text()] = units{m.Ops, m.Rejected}
	}
	return keys.Err()
}

// inHistory is the account of the SQL tables, read without the indexer's help.
func (p *pipeline) inHistory(ctx context.Context) (account, error) {
	a := account{map[string]units{}, map[cell]units{}}
	conn, err := pgx.Connect(ctx, p.history)
	if err != nil {
		return account{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // also when the deadline passed
	rows, err := conn.Query(ctx, "SELECT token, ops, rejected FROM tokens")
	if err != nil {
		return account{}, err
	}
	var id, resource string
	var u units
	_, err = pgx.ForEachRow(rows, []any{&id, &u.admitted, &u.rejected}, func() error {
		a.tokens[token.ID(id).Text()] = u
		return nil
	})
	if err != nil {
		return account{}, err
	}
	rows, err = conn.Query(ctx, "SELECT token, resource, minute, admitted, rejected FROM usage_minutes")
	if err != nil {
		return account{}, err
	}
	var minute int64
	_, err = pgx.ForEachRow(rows, []any{&id, &resource, &minute, &u.admitted, &u.rejected}, func() error {
		a.cells[cell{token.ID(id).Text(), token.ResourceText(resource), minute}] = u
		return nil
	})
	return a, err
}

// diff says where got is not want, the first few places of each kind.
func diff[K comparable](want, got map[K]units, less func(a, b K) int) error {
	var keys []K
	for k, u := range want {
		if got[k] != u {
			keys = append(keys, k)
		}
	}
	for k := range got {
		if _, expected := want[k]; !expected {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, less)
	var errs []error
	for i, k := range keys {
		if i == 5 {
			errs = append(errs, fmt.Errorf("… and %d more", len(keys)-i))
			break
		}
		errs = append(errs, fmt.Errorf("%v: want %v, got %v", k, want[k], got[k]))
	}
	return errors.Join(errs...)
}

func byCell(a, b cell) int {
	return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.resource, b.resource), cmp.Compare(a.minute, b.minute))
}

// checkAccounts waits until Redis and the history both say exactly what the
// generator says, per token and per cell.
func (p *pipeline) checkAccounts(reports ...*load.Report) {
	p.t.Helper()
	want := reported(reports...)
	total := want.total()
	if total.admitted == 0 {
		p.t.Fatalf("the load admitted nothing: there is nothing to compare; errors: %v", reports[0].Errors)
	}
	eventually(p.t, 30*time.Second, func(ctx context.Context) error {
		inRedis, inHistory, err := p.accounts(ctx)
		if err != nil {
			return err
		}
		if err := diff(want.tokens, inRedis.tokens, cmp.Compare[string]); err != nil {
			return fmt.Errorf("metadata in Redis:\n%w", err)
		}
		if err := diff(want.tokens, inHistory.tokens, cmp.Compare[string]); err != nil {
			return fmt.Errorf("tokens in the history:\n%w", err)
		}
		if err := diff(want.cells, inHistory.cells, byCell); err != nil {
			return fmt.Errorf("minutes in the history:\n%w", err)
		}
		return nil
	})
	p.t.Logf("%d tokens, %d cells: %d units admitted, %d rejected, equal everywhere", len(want.tokens), len(want.cells), total.admitted, total.rejected)
}

// checkBounds is checkAccounts for a load of which some answers got lost: Redis and
// the history agree exactly, and differ from the generator by no more than what
// it does not know.
func (p *pipeline) checkBounds(reports ...*load.Report) {
	p.t.Helper()
	var total units
	eventually(p.t, 30*time.Second, func(ctx context.Context) error {
		inRedis, inHistory, err := p.accounts(ctx)
		if err != nil {
			return err
		}
		if err := diff(inRedis.tokens, inHistory.tokens, cmp.Compare[string]); err != nil {
			return fmt.Errorf("the history differs from Redis:\n%w", err)
		}
		for _, r := range reports {
			for _, u := range r.Tokens {
				got := inHistory.tokens[u.Token]
				lost := got.admitted + got.rejected - u.Admitted - u.Rejected
				if got.admitted < u.Admitted || got.rejected < u.Rejected || lost > u.Unknown {
					return fmt.Errorf("%s has %v, the generator knows of %+v", u.Token, got, u.Counts)
				}
			}
		}
		total = inHistory.total()
		return nil
	})
	for _, r := range reports {
		p.t.Logf("the generator knows of %+v", r.Units)
	}
	p.t.Logf("the account has %d units admitted, %d rejected", total.admitted, total.rejected)
}

// accounts reads both accounts, and asserts that no minute got more than its quota.
func (p *pipeline) accounts(ctx context.Context) (inRedis, inHistory account, err error) {
	if inRedis, err = p.inRedis(ctx); err != nil {
		return account{}, account{}, err
	}
	if inHistory, err = p.inHistory(ctx); err != nil {
		return account{}, account{}, err
	}
	for _, l := range limits {
		if l.window != time.Minute {
			continue
		}
		used := map[cell]int64{}
		for c, u := range inHistory.cells {
			if strings.HasPrefix(c.token, classicPrefix) || l.resource != "" && l.resource != c.resource {
				continue
			}
			k := cell{c.token, "", c.minute}
			if used[k] += u.admitted; used[k] > l.quota {
				p.t.Fatalf("limit %s: the account says that %s got %d units of %d in minute %d", l.name, c.token, used[k], l.quota, c.minute)
			}
		}
	}
	return inRedis, inHistory, nil
}

func (a account) total() units {
	var sum units
	for _, u := range a.tokens {
		sum.admitted += u.admitted
		sum.rejected += u.rejected
	}
	return sum
}

// checkCertain asserts that every request got an answer, and that limits bit.
func checkCertain(t testing.TB, r *load.Report) {
	t.Helper()
	checkAnswered(t, r)
	if r.Requests.Rejected == 0 {
		t.Error("no limit bit: the test proves nothing about limits")
	}
}

// checkAnswered asserts that every request got an answer.
func checkAnswered(t testing.TB, r *load.Report) {
	t.Helper()
	if r.Requests.Failed+r.Requests.Unknown > 0 {
		t.Errorf("requests without an answer: %+v: %v", r.Requests, r.Errors)
	}
}
