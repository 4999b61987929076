package pgtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tallygate/tallygate/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestCommittedRowsSurviveAKill(t *testing.T) {
	ctx, s := context.Background(), pgtest.Start(t)
	url := s.Database(t)
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE TABLE kept ()")
	s.Restart()
	exec("DROP TABLE kept")
}

func TestDatabasesAreSeparate(t *testing.T) {
	ctx := context.Background()
	for range 2 {
		conn, err := pgx.Connect(ctx, pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "CREATE TABLE t ()"); err != nil {
			t.Error(err)
		}
		conn.Close(ctx)
	}
}
