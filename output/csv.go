package output

import (
	"bytes"
	"encoding/csv"
	"errors"
)

// writeCSV writes the wide columns with a header line, also over no rows, for a
// reader that finds columns by name. Cells are neither styled nor escaped: the
// format can hold any byte.
func writeCSV(b *bytes.Buffer, v View, o Options) error {
	t, err := v.rows(o.Columns, FormatCSV)
	if err != nil {
		return err
	}
	if t == nil {
		return errors.New("this result has no columns, take json or yaml")
	}
	w := csv.NewWriter(b)
	if !o.NoHeaders {
		if err := w.Write(t.header); err != nil {
			return err
		}
	}
	for _, row := range t.rows {
		fields := make([]string, len(row))
		for i, c := range row {
			fields[i] = c.raw
		}
		if err := w.Write(fields); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
