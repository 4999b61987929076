package history_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "25") // unless the command line says otherwise
	os.Exit(pgtest.Main(m))
}

// onEach runs test over each database, with the URL of an empty one.
func onEach(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("postgres", func(t *testing.T) { test(t, pgtest.Database(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, "sqlite:"+filepath.Join(t.TempDir(), "history.db")) })
}

func open(t testing.TB, url string) *history.Store {
	t.Helper()
	s, err := history.Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func record(id token.ID, resource string, minute, admitted, rejected int64) usage.Record {
	r := usage.Record{
		Key:    usage.Key{Token: id, Resource: resource, Minute: minute},
		Totals: usage.Totals{Admitted: admitted, Rejected: rejected},
	}
	if admitted > 0 {
		r.Last = minute*60 + min(admitted, 59)
	}
	return r
}

func ingest(t testing.TB, s *history.Store, records ...usage.Record) {
	t.Helper()
	if err := s.Ingest(context.Background(), usage.Batch{Records: records}); err != nil {
		t.Fatal(err)
	}
}

const noon = 29_000_000 // an epoch minute in February 2025

func TestTokensAreOneAccountOverResourcesAndMinutes(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s := open(t, url)
		ingest(t, s, record("a", "", noon, 3, 0), record("a", "search", noon, 2, 1), record("a", "", noon+1, 0, 4))
		ingest(t, s, record("a", "", noon, 10, 0), record("a", "", noon-5, 1, 0)) // grown, and late
		got, err := s.Token(context.Background(), "a")
		want := history.Token{ID: "a", Ops: 13, Rejected: 5, First: (noon - 5) * 60, Last: noon*60 + 10}
		if got != want || err != nil {
			t.Errorf("Token = %+v, %v, want %+v", got, err, want)
		}
		if _, err := s.Token(context.Background(), "b"); !errors.Is(err, history.ErrUnknownToken) {
			t.Errorf("Token of a stranger: %v", err)
		}
	})
}

// The bug that this is about: totals moved by what rows grew by since they were
// read, and not since they were locked, count what another writer has just counted.
func TestAnyOrderRepeatsSplitsAndWritersGiveTheSameTables(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s, other := open(t, url), open(t, url)
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			stream := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) usage.Record {
				// A prefix of its own per run keeps runs apart in one database.
				id := token.ID(fmt.Sprintf("run%d-%d", run, rapid.IntRange(0, 4).Draw(rt, "token")))
				r := record(id, rapid.SampledFrom([]string{"", "search"}).Draw(rt, "resource"),
					noon+rapid.Int64Range(0, 3).Draw(rt, "minute")*1000, // also other days
					rapid.Int64Range(0, 5).Draw(rt, "admitted"), rapid.Int64Range(0, 5).Draw(rt, "rejected"))
				r.Refunded = rapid.Int64Range(0, 2).Draw(rt, "refunded")
				return r
			}), 1, 40).Draw(rt, "stream")
			seed := rapid.Uint64().Draw(rt, "seed")

			var g errgroup.Group
			for w, store := range []*history.Store{s, s, other} {
				rng := rand.New(rand.NewPCG(seed, uint64(w)))
				g.Go(func() error { return replay(store, rng, stream) })
			}
			if err := g.Wait(); err != nil {
				rt.Fatal(err)
			}
			compare(rt, s, stream)
		})
	})
}

// replay ingests the whole stream, in any order, cut anywhere, some of it twice.
func replay(s *history.Store, rng *rand.Rand, stream []usage.Record) error {
	records := slices.Clone(stream)
	for range rng.IntN(len(records)) {
		records = append(records, records[rng.IntN(len(records))])
	}
	rng.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	for len(records) > 0 {
		n := 1 + rng.IntN(len(records))
		if err := s.Ingest(context.Background(), usage.Batch{Records: records[:n]}); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// compare checks the accounts of the stream's tokens, and their rows, against
// sums over the merged stream.
func compare(t interface{ Fatalf(string, ...any) }, s *history.Store, stream []usage.Record) {
	rows := map[usage.Key]usage.Totals{}
	for _, r := range stream {
		rows[r.Key] = rows[r.Key].Max(r.Totals)
	}
	want := map[token.ID]history.Token{}
	for key, totals := range rows {
		w := want[key.Token]
		w.ID = key.Token
		w.Ops += totals.Admitted
		w.Rejected += totals.Rejected
		w.Refunded += totals.Refunded
		w.Last = max(w.Last, totals.Last)
		if first := key.Minute * 60; totals.Admitted > 0 && (w.First == 0 || first < w.First) {
			w.First = first
		}
		want[key.Token] = w
	}
	ctx := context.Background()
	for id, w := range want {
		got, err := s.Token(ctx, id)
		if err != nil || got != w {
			t.Fatalf("account %+v, %v, want %+v", got, err, w)
		}
	}
	for key, totals := range rows {
		at := time.Unix(key.Minute*60, 0)
		points, err := s.Usage(ctx, key.Token, history.Span{From: at, To: at.Add(time.Minute), Step: time.Minute}, key.Resource)
		if err != nil || len(points) != 1 || points[0].Totals != totals {
			t.Fatalf("row %+v = %+v, %v, want %+v", key, points, err, totals)
		}
	}
	err := s.EachSum(ctx, func(id token.ID, sum usage.Totals) error {
		if w, ok := want[id]; ok && sum != (usage.Totals{Admitted: w.Ops, Rejected: w.Rejected, Refunded: w.Refunded, Last: w.Last}) {
			return fmt.Errorf("rows of %s add up to %+v, the account says %+v", id, sum, w)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func TestPagesInEveryOrderMeetEachTokenOnce(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s := open(t, url)
		var all []usage.Record
		for i := range 25 { // with ties in every column
			id := token.ID(fmt.Sprintf("%c%d", "aZé"[i%2], i))
			all = append(all, record(id, "", noon+int64(i%3), int64(i%4), int64(i%5)))
		}
		ingest(t, s, all...)
		for _, order := range []string{"ops", "-ops", "rejected", "-rejected", "refunded", "-refunded", "first", "-first", "last", "-last", "token", "-token"} {
			sort, err := history.ParseSort(order)
			if err != nil {
				t.Fatal(err)
			}
			var got []history.Token
			for after, pages := "", 0; pages == 0 || after != ""; pages++ {
				page, next, err := s.Tokens(context.Background(), history.Page{Sort: sort, Limit: 4, After: after})
				if err != nil {
					t.Fatal(err)
				}
				got, after = append(got, page...), next
			}
			if len(got) != 25 {
				t.Fatalf("sorted by %s: %d tokens, want 25", order, len(got))
			}
			key := func(v history.Token) int64 {
				return map[string]int64{"ops": v.Ops, "rejected": v.Rejected, "first": v.First, "last": v.Last}[strings.TrimPrefix(order, "-")]
			}
			less := func(a, b history.Token) int {
				c := cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(a.ID, b.ID))
				if strings.HasPrefix(order, "-") {
					return -c
				}
				return c
			}
			if !slices.IsSortedFunc(got, less) {
				t.Errorf("sorted by %s: %+v", order, got)
			}
		}
		byOps, _ := history.ParseSort("-ops")
		_, next, err := s.Tokens(context.Background(), history.Page{Sort: byOps, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		for sort, after := range map[string]string{"-last": next, "-ops": "!"} {
			order, _ := history.ParseSort(sort)
			if _, _, err := s.Tokens(context.Background(), history.Page{Sort: order, Limit: 1, After: after}); !errors.Is(err, history.ErrCursor) {
				t.Errorf("cursor %q of another order: %v", after, err)
			}
		}
	})
}

func TestUsageFillsStepsOnEpochMultiples(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s := open(t, url)
		hour := int64(noon / 60 * 60)
		ingest(t, s, record("a", "", hour, 1, 0), record("a", "search", hour+59, 2, 1), record("a", "", hour+60, 4, 0),
			record("a", "", hour+180, 8, 0), record("b", "", hour, 100, 0))
		at := func(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }
		points, err := s.Usage(context.Background(), "a", history.Span{From: at(hour + 30), To: at(hour + 180), Step: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range points {
			got = append(got, fmt.Sprint(p.Start.Unix()/60-hour, p.Admitted, p.Rejected))
		}
		if want := []string{"0 3 1", "60 4 0", "120 0 0"}; !slices.Equal(got, want) {
			t.Errorf("points %q, want %q", got, want)
		}
		names, err := s.Resources(context.Background(), "a")
		if !slices.Equal(names, []string{"", "search"}) || err != nil {
			t.Errorf("Resources = %q, %v", names, err)
		}
		for name, span := range map[string]history.Span{
			"backwards":   {From: at(2), To: at(1), Step: time.Minute},
			"no step":     {From: at(1), To: at(2)},
			"half step":   {From: at(1), To: at(2), Step: 90 * time.Second},
			"many steps":  {From: at(1), To: at(history.MaxPoints + 2), Step: time.Minute},
			"before 1970": {From: at(-5), To: at(2), Step: time.Minute},
		} {
			if _, err := s.Usage(context.Background(), "a", span); !errors.Is(err, history.ErrSpan) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestSeveralMayOpenANewHistoryAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		var g errgroup.Group
		for range 4 {
			g.Go(func() error {
				s, err := history.Open(context.Background(), url)
				if err != nil {
					return err
				}
				return s.Close()
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestOpenSaysWhatIsWrongAndKeepsThePassword(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("this is no database, however long it goes on"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"":                                   "must begin with postgres://",
		"mysql://root:secret@localhost":      "must begin with postgres://",
		"sqlite:":                            "must begin with postgres://",
		"sqlite:" + file:                     "not a database",
		"postgres://u:secret@127.0.0.1:1/db": "cannot use Postgres at postgres://u:xxxxx@127.0.0.1:1/db; is it running",
		"postgres://u@127.0.0.1:1/db?password=secret": "cannot use Postgres",
		"postgres://u:secret@127.0.0.1:port/db":       "invalid",
	} {
		_, err := history.Open(context.Background(), url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v, want ...%s...", url, err, want)
		}
	}
}

func TestSumIsOverAllTokens(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		s := open(t, url)
		if sum, err := s.Sum(context.Background()); sum != (usage.Totals{}) || err != nil {
			t.Errorf("empty: %+v, %v", sum, err)
		}
		ingest(t, s, record("a", "", noon, 3, 1), record("b", "x", noon, 4, 0))
		want := usage.Totals{Admitted: 7, Rejected: 1, Last: noon*60 + 4}
		if sum, err := s.Sum(context.Background()); sum != want || err != nil {
			t.Errorf("Sum = %+v, %v, want %+v", sum, err, want)
		}
		sums := map[token.ID]int64{}
		if err := s.EachSum(context.Background(), func(id token.ID, sum usage.Totals) error {
			sums[id] = sum.Admitted
			return nil
		}); err != nil || !maps.Equal(sums, map[token.ID]int64{"a": 3, "b": 4}) {
			t.Errorf("EachSum: %v, %v", sums, err)
		}
	})
}
