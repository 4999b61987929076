package history_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// batchRows is the size of a batch in the benchmarks: what a busy minute brings.
const batchRows = 5000

// backlog returns batchRows records of ten minutes each for a tenth of the tokens:
// what there is to catch up with after an outage.
func backlog(n int64) usage.Batch {
	var b usage.Batch
	for m := range int64(10) {
		b.Records = append(b.Records, minuteOf(10*n + m).Records[:batchRows/10]...)
	}
	return b
}

// minuteOf returns one record for each of batchRows tokens in the n-th minute.
func minuteOf(n int64) usage.Batch {
	var b usage.Batch
	for i := range int64(batchRows) {
		b.Records = append(b.Records, usage.Record{
			Key:    usage.Key{Token: token.ID(fmt.Sprintf("key-%06d", i)), Resource: "search", Minute: noon + n},
			Totals: usage.Totals{Admitted: 1 + i%50, Rejected: i % 3, Last: (noon+n)*60 + i%60},
		})
	}
	return b
}

// BenchmarkIngest measures rows per second, and against a plain COPY of the same
// rows into an equal table in the same server, batch by batch in turn (of-copy).
func BenchmarkIngest(b *testing.B) {
	for _, kind := range []string{"new", "backlog", "grown", "replayed"} {
		b.Run("postgres/"+kind, func(b *testing.B) {
			ctx, url := context.Background(), pgtest.Database(b)
			s := open(b, url)
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close(ctx)
			if _, err := conn.Exec(ctx, `CREATE TABLE plain (LIKE usage_minutes INCLUDING DEFAULTS, PRIMARY KEY (token, resource, minute))`); err != nil {
				b.Fatal(err)
			}
			var ours, copied time.Duration
			n := int64(0)
			for b.Loop() {
				n++
				batch := minuteOf(n)
				if kind == "backlog" {
					batch = backlog(n)
				}
				copied += timed(b, func() error { return copyRows(ctx, conn, batch) })
				if kind == "replayed" || kind == "grown" { // has been there before
					first := minuteOf(n)
					for i := range first.Records {
						if kind == "grown" {
							first.Records[i].Admitted /= 2
						}
					}
					if err := s.Ingest(ctx, first); err != nil {
						b.Fatal(err)
					}
				}
				ours += timed(b, func() error { return s.Ingest(ctx, batch) })
			}
			b.ReportMetric(float64(n*batchRows)/ours.Seconds(), "rows/s")
			b.ReportMetric(copied.Seconds()/ours.Seconds(), "of-copy")
		})
	}
	b.Run("sqlite/new", func(b *testing.B) {
		s := open(b, "sqlite:"+filepath.Join(b.TempDir(), "history.db"))
		n := int64(0)
		for b.Loop() {
			n++
			if err := s.Ingest(context.Background(), minuteOf(n)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n*batchRows)/b.Elapsed().Seconds(), "rows/s")
	})
}

func timed(b *testing.B, f func() error) time.Duration {
	began := time.Now()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

func copyRows(ctx context.Context, conn *pgx.Conn, batch usage.Batch) error {
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"plain"}, []string{"token", "resource", "minute", "admitted", "rejected", "refunded", "last_use"},
		pgx.CopyFromSlice(len(batch.Records), func(i int) ([]any, error) {
			r := batch.Records[i]
			return []any{string(r.Token), r.Resource, r.Minute, r.Admitted, r.Rejected, r.Refunded, r.Last}, nil
		}))
	return err
}
