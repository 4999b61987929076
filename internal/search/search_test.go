package search_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/query/querytest"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/search"
	"github.com/tallygate/tallygate/internal/token"
)

// writer returns a client that says the same whatever its version.
func writer(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func open(t testing.TB, addr string) *search.Index {
	t.Helper()
	x, err := search.Open(redis.NewClient(&redis.Options{Addr: addr}), search.Options{Poll: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func migrate(t testing.TB, x *search.Index) {
	t.Helper()
	if err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// write writes tokens' metadata as the tracker and the admin API do.
func write(t testing.TB, client *redis.Client, rows ...query.Row) {
	t.Helper()
	_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, r := range rows {
			hash := []any{
				"token", string(r.Token), "ops", r.Ops, "rejected", r.Rejected, "refunded", r.Refunded,
				"first", r.First, "last", r.Last, "rate", r.Rate, "peak", r.Peak, "percent", r.Percent,
			}
			for _, f := range [][2]string{{"policy", r.Policy}, {"owner", r.Owner}, {"labels", strings.Join(r.Labels, "\n")}} {
				if f[1] != "" {
					hash = append(hash, f[0], f[1])
				}
			}
			if r.Status == query.StatusBlocked {
				hash = append(hash, "status", r.Status)
			}
			p.HSet(t.Context(), metadata.Key("api", r.Token), hash...)
		}
		return nil
	})
	if err != nil && len(rows) > 0 {
		t.Fatal(err)
	}
}

func TestAnswersAreThoseOfThePlainestSource(t *testing.T) {
	querytest.Run(t, querytest.Options{Keeps: query.Fields}, func(t *testing.T, rows []query.Row) query.Source {
		addr := resptest.Start(t)
		write(t, writer(t, addr), rows...)
		x := open(t, addr)
		migrate(t, x)
		return x
	})
}

// The mechanism that this is about: a window that is one row too narrow loses the
// end of a page, and one that cuts through equal figures loses some of them.
func TestWindowsLoseNothing(t *testing.T) {
	addr := resptest.Start(t)
	rows := querytest.Rows()
	write(t, writer(t, addr), rows...)
	x := open(t, addr)
	search.Narrow(x)
	migrate(t, x)
	for _, text := range []string{"sort:-ops", "sort:ops", "sort:-rejected", "sort:rejected", "sort:-last", "user ops<25k sort:ops"} {
		q, err := query.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for q.Limit = 7; q.Limit < 20; q.Limit += 12 {
			for q.After = ""; ; {
				want, err := querytest.Search(rows, q, querytest.Now)
				if err != nil {
					t.Fatal(err)
				}
				got, err := x.Search(t.Context(), q, querytest.Now)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("%s, %d rows after %q\ngot  %+v, %v\nwant %+v", q, q.Limit, q.After, got, err, want)
				}
				if q.After = got.Next; q.After == "" {
					break
				}
			}
		}
	}
}

// The schema is what every index out there was made with.
func TestAChangedSchemaHasANewVersion(t *testing.T) {
	const want = "1 6f9edec99dd1b38f"
	got := fmt.Sprintf("%d %x", search.Version, sha256.Sum256([]byte(fmt.Sprintf("%q", search.Schema("{api:")))))
	if got[:18] != want {
		t.Errorf("the schema is %s, was %s: raise version in schema.go, and put the new one here", got[:18], want)
	}
}

// fill writes n tokens, the last with the highest figures.
func fill(t testing.TB, client *redis.Client, n int) {
	rows := make([]query.Row, n)
	for i := range rows {
		rows[i] = query.Row{Token: token.ID(fmt.Sprintf("t%04d", i)), Ops: int64(i)}
	}
	write(t, client, rows...)
}

func TestMigrateReplacesAnOlderIndexUnderneathItsAlias(t *testing.T) {
	addr := resptest.Start(t)
	client, ctx := writer(t, addr), t.Context()
	fill(t, client, 3)
	do := func(args ...any) {
		t.Helper()
		if err := client.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	x := open(t, addr)
	if _, err := x.Status(ctx); !errors.Is(err, search.ErrNoIndex) {
		t.Errorf("before there is an index: %v", err)
	}
	if _, err := x.Search(ctx, query.Query{}, querytest.Now); !errors.Is(err, search.ErrNoIndex) || !search.Unanswered(err) {
		t.Errorf("before there is an index: %v", err)
	}
	// As an older Tallygate left it, and one of somebody else.
	do("FT.CREATE", "tallygate:api:tokens:v0", "ON", "HASH", "PREFIX", 1, "{api:", "SCHEMA", "ops", "NUMERIC", "SORTABLE")
	do("FT.ALIASADD", "tallygate:api:tokens", "tallygate:api:tokens:v0")
	do("FT.CREATE", "tallygate:api:tokens:vintage", "SCHEMA", "ops", "NUMERIC")

	for range 2 { // the second time there is nothing to do
		migrate(t, x)
		s, err := x.Status(ctx)
		if want := (search.Status{Index: "tallygate:api:tokens:v1", Tokens: 3, Complete: true}); s != want || err != nil {
			t.Errorf("%+v, %v, want %+v", s, err, want)
		}
	}
	names, err := client.Do(ctx, "FT._LIST").StringSlice()
	slices.Sort(names)
	if want := []string{"tallygate:api:tokens:v1", "tallygate:api:tokens:vintage"}; !slices.Equal(names, want) || err != nil {
		t.Errorf("indexes %q, %v, want %q", names, err, want)
	}
	page, err := x.Search(ctx, query.Query{Limit: 1}, querytest.Now)
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Token != "t0002" {
		t.Errorf("%+v, %v", page, err)
	}

	// A newer Tallygate has been here: its index is used, and kept.
	do("FT.CREATE", "tallygate:api:tokens:v7", "ON", "HASH", "PREFIX", 1, "{api:", "SCHEMA", "ops", "NUMERIC", "SORTABLE")
	do("FT.ALIASUPDATE", "tallygate:api:tokens", "tallygate:api:tokens:v7")
	migrate(t, x)
	if s, err := x.Status(ctx); s.Index != "tallygate:api:tokens:v7" || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// Nobody who asks while an index is made meets half of it: the alias moves last.
func TestQueriesAreWholeWhileTheIndexIsReplaced(t *testing.T) {
	addr := resptest.Live(t)
	client := writer(t, addr)
	const tokens = 3000
	for from := 0; from < tokens; from += 1000 {
		rows := make([]query.Row, 1000)
		for i := range rows {
			rows[i] = query.Row{Token: token.ID(fmt.Sprintf("t%06d", from+i)), Ops: 1}
		}
		write(t, client, rows...)
	}
	x := open(t, addr)
	migrate(t, x)
	// Make today's index look like one of an older version.
	for _, args := range [][]any{
		append([]any{"FT.CREATE", "tallygate:api:tokens:v0"}, search.Schema("{api:")...),
		{"FT.ALIASUPDATE", "tallygate:api:tokens", "tallygate:api:tokens:v1"},
	} {
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool {
		info, err := client.Do(t.Context(), "FT.INFO", "tallygate:api:tokens:v0").Slice()
		return err == nil && strings.Contains(fmt.Sprint(info), "percent_indexed 1 ")
	})
	for _, args := range [][]any{
		{"FT.ALIASUPDATE", "tallygate:api:tokens", "tallygate:api:tokens:v0"},
		{"FT.DROPINDEX", "tallygate:api:tokens:v1"},
	} {
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}

	done := make(chan error, 1)
	go func() { done <- open(t, addr).Migrate(t.Context()) }()
	asked := 0
	// Indexing has the time that questions leave it.
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for ended := false; !ended; asked++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			ended = true
		case <-pause.C:
		}
		sum, err := x.Groups(t.Context(), query.Query{}, "", querytest.Now)
		if err != nil || sum[0].Tokens != tokens {
			t.Fatalf("question %d: %+v, %v", asked, sum, err)
		}
	}
	t.Logf("%d questions while the index was replaced", asked)
	if s, err := x.Status(t.Context()); s.Index != "tallygate:api:tokens:v1" || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

func waitFor(t *testing.T, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ready(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestHashesThatAreNotOursAreLeftOutAndBrokenOnesCounted(t *testing.T) {
	addr := resptest.Start(t)
	client := writer(t, addr)
	fill(t, client, 2)
	if err := client.HSet(t.Context(), "{api:broken}:data", "token", "broken", "ops", "many").Err(); err != nil {
		t.Fatal(err)
	}
	x := open(t, addr)
	migrate(t, x)
	s, err := x.Status(t.Context())
	if s.Tokens != 2 || s.Failures != 1 || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	// As classic functions write it: found when the tracker has completed it.
	if err := client.HSet(t.Context(), "{api:classic}:data", "ops", 9, "last", 5).Err(); err != nil {
		t.Fatal(err)
	}
	ask := func() []query.Row {
		t.Helper()
		q, err := query.Parse("-nobody ops>1")
		if err != nil {
			t.Fatal(err)
		}
		page, err := x.Search(t.Context(), q, querytest.Now)
		if err != nil {
			t.Fatal(err)
		}
		return page.Rows
	}
	if rows := ask(); len(rows) != 0 {
		t.Errorf("%+v", rows)
	}
	write(t, client, query.Row{Token: "classic", Ops: 9, Last: 5})
	if rows := ask(); len(rows) != 1 || rows[0].Token != "classic" {
		t.Errorf("%+v", rows)
	}
}
