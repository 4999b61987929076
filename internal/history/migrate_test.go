package history_test

import (
	"context"
	"database/sql"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/migrations"
)

var update = flag.Bool("update", false, "write the schema dumps in testdata anew")

func TestMigrationsHaveNoGapsAndAreTheSameForBothDatabases(t *testing.T) {
	names := func(dir string) []string {
		files, err := fs.ReadDir(migrations.FS, dir)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range files {
			all = append(all, f.Name())
		}
		return all
	}
	postgres, sqlite := names("postgres"), names("sqlite")
	if !slices.Equal(postgres, sqlite) {
		t.Errorf("postgres has %q, sqlite has %q", postgres, sqlite)
	}
	form := regexp.MustCompile(`^([0-9]{5})_[a-z_]+\.sql$`)
	for i, name := range postgres {
		m := form.FindStringSubmatch(name)
		if m == nil {
			t.Errorf("%s is not named NNNNN_words.sql", name)
			continue
		}
		if n, _ := strconv.Atoi(m[1]); n != i+1 {
			t.Errorf("%s is migration %d", name, i+1)
		}
	}
}

// The dump is what a reviewer reads, and what tells a changed old migration.
func TestTheSchemaIsAsDumpedAndMigrationsGoBackAndForth(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx := context.Background()
		s := open(t, url)
		latest, err := s.SchemaVersion(ctx)
		if err != nil || latest < 4 {
			t.Fatalf("SchemaVersion = %d, %v", latest, err)
		}
		name, _, _ := strings.Cut(t.Name()[strings.LastIndex(t.Name(), "/")+1:], "#")
		file := filepath.Join("testdata", "schema."+name+".txt")
		schema := dump(t, url)
		if *update {
			if err := os.WriteFile(file, []byte(schema), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if schema != string(want) {
			t.Errorf("the schema is not that of %s; if that is intended run  go test ./internal/history -run Schema -update\n%s", file, schema)
		}
		ingest(t, s, record("a", "", noon, 1, 0))
		for version := latest - 1; version >= 0; version-- {
			if err := s.MigrateTo(ctx, version); err != nil {
				t.Fatal(err)
			}
		}
		if left := dump(t, url); left != "" {
			t.Errorf("left after going all the way back:\n%s", left)
		}
		for version := int64(1); version <= latest; version++ {
			if err := s.MigrateTo(ctx, version); err != nil {
				t.Fatal(err)
			}
		}
		if again := dump(t, url); again != schema {
			t.Errorf("back and forth it became\n%s", again)
		}
		// The store knows of a partition that went with the tables.
		for attempt := 1; ; attempt++ {
			err := s.Ingest(ctx, usage.Batch{Records: []usage.Record{record("a", "", noon, 1, 0)}})
			if err == nil {
				break
			}
			if attempt == 2 {
				t.Fatal(err)
			}
		}
	})
}

func TestAHistoryOfALaterReleaseIsUsedAsItIs(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		open(t, url)
		if err := tamper(t, url, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, "+map[bool]string{true: "1", false: "true"}[strings.HasPrefix(url, "sqlite:")]+")"); err != nil {
			t.Fatal(err)
		}
		s, err := history.Open(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ingest(t, s, record("a", "", noon, 1, 0))
	})
}

// dump describes the schema, but for goose's own table and the partitions.
func dump(t *testing.T, url string) string {
	t.Helper()
	driver, address := "pgx", url
	queries := []string{
		`SELECT format('%s.%s %s%s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
				CASE WHEN a.attnotnull THEN ' NOT NULL' END, coalesce(' COLLATE ' || nullif(l.collname, 'default'), ''),
				coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''))
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			LEFT JOIN pg_collation l ON l.oid = a.attcollation
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
			AND c.relname <> 'goose_db_version' ORDER BY c.relname, a.attnum`,
		`SELECT format('%s PARTITION BY %s', p.partrelid::regclass, pg_get_partkeydef(p.partrelid)) FROM pg_partitioned_table p`,
		`SELECT format('%s: %s', n.conrelid::regclass, pg_get_constraintdef(n.oid)) FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
			WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition AND c.relname <> 'goose_db_version' ORDER BY 1`,
		`SELECT indexdef FROM pg_indexes i JOIN pg_class c ON c.relname = i.tablename
			WHERE schemaname = 'public' AND NOT c.relispartition AND tablename <> 'goose_db_version' ORDER BY indexname`,
		`SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g WHERE NOT g.tgisinternal ORDER BY g.tgname`,
		`SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace ORDER BY p.proname`,
	}
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		driver, address = "sqlite", path
		queries = []string{`SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose%' ORDER BY name`}
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var b strings.Builder
	for _, q := range queries {
		for _, line := range column(t, db, q) {
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	return b.String()
}
