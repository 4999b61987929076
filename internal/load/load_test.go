package load_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/quota"
)

// deciderFunc answers by a function.
type deciderFunc func(ctx context.Context, r load.Request) (load.Answer, error)

func (f deciderFunc) Decide(ctx context.Context, r load.Request) (load.Answer, error) {
	return f(ctx, r)
}

// journal admits everything and keeps what it was asked.
type journal struct {
	mu   sync.Mutex
	seen []load.Request
}

func (j *journal) Decide(_ context.Context, r load.Request) (load.Answer, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen = append(j.seen, r)
	return load.Answer{Outcome: quota.Admitted, At: 60_000 * 7}, nil
}

func (j *journal) sorted() []string {
	var lines []string
	for _, r := range j.seen {
		lines = append(lines, fmt.Sprint(r))
	}
	slices.Sort(lines)
	return lines
}

func run(t *testing.T, d load.Decider, o load.Options) *load.Report {
	t.Helper()
	g, err := load.New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return g.Run(t.Context())
}

func TestSameSeedMakesTheSameRequestsWhateverTheConcurrency(t *testing.T) {
	opts := load.Options{
		Seed: 42, Tokens: 50, Zipf: 1.2, Policy: "free",
		Resources: []load.Choice{{Resource: "search", Weight: 9}, {Resource: "export", Weight: 1}},
		Costs:     []load.Cost{{Units: 1, Weight: 3}, {Units: 5, Weight: 1}},
	}
	runs := make([]*journal, 3)
	for i, shape := range []struct {
		workers    int
		iterations int64
		seed       uint64
	}{{1, 600, 42}, {6, 100, 42}, {1, 600, 43}} {
		runs[i] = &journal{}
		opts.Concurrency, opts.Iterations, opts.Seed = shape.workers, shape.iterations, shape.seed
		run(t, runs[i], opts)
	}
	if !slices.Equal(runs[0].sorted(), runs[1].sorted()) {
		t.Error("one worker and six workers made different requests of the same seed")
	}
	if slices.Equal(runs[0].sorted(), runs[2].sorted()) {
		t.Error("two seeds made the same requests")
	}
}

func TestZipfMakesFewTokensPopular(t *testing.T) {
	j := &journal{}
	report := run(t, j, load.Options{Iterations: 5000, Tokens: 1000, Zipf: 1.5})
	var most int64
	for _, u := range report.Tokens {
		most = max(most, u.Admitted)
	}
	if most < 1000 { // of 5000 alike over 1000 tokens it would be about 5
		t.Errorf("the most popular token was asked for %d times of 5000", most)
	}
}

// What was under way and got cut must never look admitted, or an audit would call
// an exact account wrong.
func TestReportSaysUnknownForAmbiguousAnswersAndFailedForCertainOnes(t *testing.T) {
	errs := []error{nil, nil, fmt.Errorf("dial: %w", load.ErrNotCounted), errors.New("connection reset")}
	var mu sync.Mutex
	n := 0
	d := deciderFunc(func(context.Context, load.Request) (load.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		switch i := n % 4; {
		case errs[i] != nil:
			// A decider that is wrong about its answer too must not be believed.
			return load.Answer{Outcome: quota.Admitted, At: 1}, errs[i]
		case i == 0:
			return load.Answer{Outcome: quota.Admitted, At: 125_000}, nil
		default:
			return load.Answer{Outcome: quota.Rejected, At: 125_000}, nil
		}
	})
	r := run(t, d, load.Options{Iterations: 40, Tokens: 1, Costs: []load.Cost{{Units: 3, Weight: 1}}})
	want := load.Counts{Admitted: 30, Rejected: 30, Failed: 30, Unknown: 30}
	if r.Units != want || len(r.Tokens) != 1 || r.Tokens[0].Counts != want {
		t.Errorf("units %+v, tokens %+v, want %+v", r.Units, r.Tokens, want)
	}
	if (r.Requests != load.Counts{Admitted: 10, Rejected: 10, Failed: 10, Unknown: 10}) {
		t.Errorf("requests %+v", r.Requests)
	}
	cells := map[int64]load.Counts{}
	for _, c := range r.Cells {
		cells[c.Minute] = c.Counts
	}
	if (cells[2] != load.Counts{Admitted: 30, Rejected: 30}) || (cells[0] != load.Counts{Failed: 30, Unknown: 30}) {
		t.Errorf("cells by minute: %+v", cells)
	}
	if len(r.Errors) != 2 || r.Errors[0].Count != 10 {
		t.Errorf("errors %+v", r.Errors)
	}
}

// An answer that is on its way when the run ends is part of the account.
func TestEndOfRunWaitsForAnswersUnderWay(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	d := deciderFunc(func(ctx context.Context, _ load.Request) (load.Answer, error) {
		close(asked)
		<-answer
		return load.Answer{Outcome: quota.Admitted}, ctx.Err()
	})
	g, err := load.New(d, load.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan *load.Report)
	go func() { done <- g.Run(ctx) }()
	<-asked
	cancel()
	close(answer)
	if r := <-done; (r.Requests != load.Counts{Admitted: 1}) {
		t.Errorf("requests %+v, want one admitted", r.Requests)
	}
}

func TestRateSpreadsRequestsOverTime(t *testing.T) {
	j := &journal{}
	r := run(t, j, load.Options{Iterations: 40, Rate: 400, Concurrency: 2, Tokens: 1})
	if took, want := r.Ended.Sub(r.Started), 79*time.Second/400; took < want {
		t.Errorf("80 requests at 400/s took %s, want at least %s", took, want)
	}
}

func TestNewReportsAllBadOptionsTogether(t *testing.T) {
	_, err := load.New(&journal{}, load.Options{
		Concurrency: -1, Zipf: 0.5, Rate: -1,
		Resources: []load.Choice{{Resource: "a"}}, Costs: []load.Cost{{Units: -3, Weight: 1}},
	})
	for _, word := range []string{"concurrency", "zipf", "rate", `resource "a"`, "cost -3"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v does not mention %s", err, word)
		}
	}
}

func ExampleReport_WriteJSON() {
	r := load.Report{Tokens: []load.Usage{{Token: "load-0", Counts: load.Counts{Admitted: 12, Rejected: 6, Unknown: 2}}}}
	b, _ := json.Marshal(r.Tokens)
	fmt.Println(string(b))
	// Output:
	// [{"token":"load-0","admitted":12,"rejected":6,"failed":0,"unknown":2}]
}

func BenchmarkGenerator(b *testing.B) {
	g, err := load.New(&yes{}, load.Options{Iterations: int64(b.N), Tokens: 100_000, Zipf: 1.1})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	g.Run(b.Context())
}

// yes admits everything at no cost.
type yes struct{}

func (*yes) Decide(context.Context, load.Request) (load.Answer, error) {
	return load.Answer{Outcome: quota.Admitted, At: 60_000}, nil
}
