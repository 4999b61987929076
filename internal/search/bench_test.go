package search_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/query/querytest"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/token"
)

var tokens = flag.Int("tokens", 20_000, "tokens in the index of BenchmarkSearch")

// BenchmarkSearch asks a live server, for example for the top 100 of a million:
//
//	go test ./internal/search -run '^$' -bench Search -tokens 1000000 -timeout 1h
func BenchmarkSearch(b *testing.B) {
	addr := resptest.Live(b)
	client, x := writer(b, addr), open(b, addr)
	rng := rand.New(rand.NewPCG(1, 2))
	for from := 0; from < *tokens; from += 1000 {
		rows := make([]query.Row, min(1000, *tokens-from))
		for i := range rows {
			ops := int64(math.Pow(rng.Float64(), -1.25)) // a few use much, most little
			rows[i] = query.Row{
				Token: token.ID(fmt.Sprintf("%s-%07d", []string{"acme", "globex", "initech", "umbra"}[rng.IntN(4)], from+i)),
				Ops:   ops, Rejected: max(0, rng.Int64N(1000)-900), First: 1_750_000_000, Last: 1_759_000_000 + rng.Int64N(1_000_000),
				Policy: []string{"free", "pro", "team"}[rng.IntN(3)], Owner: fmt.Sprintf("owner-%03d", rng.IntN(1000)),
			}
		}
		write(b, client, rows...)
	}
	migrate(b, x)
	ask := func(name, text string, limit int) {
		q, err := query.Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		q.Limit = limit
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				page, err := x.Search(b.Context(), q, querytest.Now)
				if err != nil || len(page.Rows) == 0 {
					b.Fatal(len(page.Rows), err)
				}
			}
		})
	}
	ask("top-100", "", 100)
	ask("top-100-latest", "sort:-last", 100)
	ask("top-100-of-a-policy", "policy:pro", 100)
	ask("top-100-of-an-owner", "owner:owner-007", 100)
	ask("top-100-by-prefix", "acme-0", 100)
	ask("first-100-by-token", "sort:token", 100)
	b.Run("groups-by-policy", func(b *testing.B) {
		for b.Loop() {
			if _, err := x.Groups(b.Context(), query.Query{}, query.Policy, querytest.Now); err != nil {
				b.Fatal(err)
			}
		}
	})
}
