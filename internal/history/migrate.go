package history

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"

	"github.com/tallygate/tallygate/migrations"
)

// migrator runs the migrations of one database.
type migrator struct {
	*goose.Provider
	// attempts is how often Up is tried. Where nothing locks others out, one who
	// migrates at the same time makes a step fail (it is rolled back), and the next
	// attempt finds that step done.
	attempts int
}

func newMigrator(dialect goose.Dialect, db *sql.DB, dir string, attempts int, opts ...goose.ProviderOption) (*migrator, error) {
	files, err := fs.Sub(migrations.FS, dir)
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(dialect, db, files, opts...)
	if err != nil {
		return nil, fmt.Errorf("history: read migrations: %w", err)
	}
	return &migrator{p, attempts}, nil
}

// Migrate brings the schema up to date. A schema that is newer than this program
// knows is left as it is.
func (s *Store) Migrate(ctx context.Context) error {
	m, err := s.engine.migrator()
	if err != nil {
		return err
	}
	for range m.attempts {
		if _, err = m.Up(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("history: migrate the schema: %w", err)
}

// MigrateTo moves the schema to a version, forward or back. Going back drops what
// came with the versions in between, and what is in it.
func (s *Store) MigrateTo(ctx context.Context, version int64) error {
	m, err := s.engine.migrator()
	if err != nil {
		return err
	}
	now, err := m.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("history: read the schema's version: %w", err)
	}
	if version >= now {
		_, err = m.UpTo(ctx, version)
	} else {
		_, err = m.DownTo(ctx, version)
	}
	if err != nil {
		return fmt.Errorf("history: migrate the schema from version %d to %d: %w", now, version, err)
	}
	return nil
}

// SchemaVersion returns the version that the schema is at: the number of the last
// migration.
func (s *Store) SchemaVersion(ctx context.Context) (int64, error) {
	m, err := s.engine.migrator()
	if err != nil {
		return 0, err
	}
	version, err := m.GetDBVersion(ctx)
	if err != nil {
		return 0, fmt.Errorf("history: read the schema's version: %w", err)
	}
	return version, nil
}
