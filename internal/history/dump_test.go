package history_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/pgtest"
)

func freshPostgres(t *testing.T) string { return pgtest.Database(t) }

// grep returns the first row of any table in which the text stands, whatever the case.
func grep(t *testing.T, url, text string) string {
	t.Helper()
	driver, address, list := "pgx", url, `SELECT c.relname FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace`
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, address, list = "sqlite", path, `SELECT name FROM sqlite_master WHERE type = 'table'`
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, table := range column(t, db, list) {
		rows, err := db.QueryContext(context.Background(), "SELECT * FROM "+table)
		if err != nil {
			t.Fatal(err)
		}
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			values := make([]any, len(names))
			for i := range values {
				values[i] = &sql.NullString{}
			}
			if err := rows.Scan(values...); err != nil {
				t.Fatal(err)
			}
			for i, v := range values {
				if s := v.(*sql.NullString).String; strings.Contains(strings.ToLower(s), text) {
					rows.Close()
					return fmt.Sprintf("%s.%s: %s", table, names[i], s)
				}
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
	return ""
}

// column returns the values of a query's only column.
func column(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
