package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/usage"
)

// Source is where rows come from.
type Source interface {
	EachRows(ctx context.Context, q history.Rows, f func([]usage.Record) error) error
}

// To writes all rows of q to w; progress is told after each portion how many more
// rows are written.
func To(ctx context.Context, w io.Writer, format string, source Source, q history.Rows, progress func(rows int)) error {
	out, err := New(format, w)
	if err != nil {
		return err
	}
	err = source.EachRows(ctx, q, func(rows []usage.Record) error {
		if err := out.Write(rows); err != nil {
			return fmt.Errorf("write the export: %w", err)
		}
		progress(len(rows))
		return nil
	})
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	return nil
}

// ToFile is To into a file, which is there as a whole or not at all.
func ToFile(ctx context.Context, path, format string, source Source, q history.Rows, progress func(rows int)) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreClosed(f.Close()), os.Remove(f.Name()))
		}
	}()
	if err := To(ctx, f, format, source, q, progress); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// ToFolder writes one file per UTC day into a folder, usage-2026-01-31.parquet and
// so on. A day whose file is there is not written again, so an export that broke
// off goes on where it stopped; a day that had not ended at now is written anew
// each time. It returns how many files it wrote and how many it left as they were.
func ToFolder(ctx context.Context, folder, format string, source Source, q history.Rows, now time.Time, progress func(rows int)) (written, kept int, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, 0, fmt.Errorf("write the export: %w", err)
	}
	const day = 24 * time.Hour
	for from := q.From; from.Before(q.To); {
		next := from.UTC().Truncate(day).Add(day)
		part := q
		part.From, part.To = from, next
		if q.To.Before(next) {
			part.To = q.To
		}
		path := filepath.Join(folder, "usage-"+from.UTC().Format(time.DateOnly)+"."+format)
		if _, err := os.Stat(path); err == nil && next.Before(now) {
			kept++
		} else {
			if err := ToFile(ctx, path, format, source, part, progress); err != nil {
				return written, kept, err
			}
			written++
		}
		from = next
	}
	return written, kept, nil
}
