//go:build linux

package examples

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kshare/kshare/internal/need"
)

// postgres is a PostgreSQL server of the test's own, on a socket in a directory of
// its own.
type postgres struct {
	dir  string // of the socket
	psql string
}

const postgresUser = "kshare"

// postgresBin returns the directory of the newest PostgreSQL that is installed.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		if path, err := exec.LookPath("initdb"); err == nil {
			return filepath.Dir(path), nil
		}
		return "", errors.New("no PostgreSQL server is installed")
	}
	version := func(path string) int {
		v, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return v
	}
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(found[len(found)-1]), nil
}

// startPostgres starts a server. Where none is installed, or not what the runbooks
// need, it skips the test, and fails it in CI (the environment variable CI is set):
// there a test that did not run is no test.
func startPostgres(t *testing.T) *postgres {
	t.Helper()
	bin, err := postgresBin()
	for _, program := range []string{"bash", "jq", "psql"} {
		if err == nil {
			_, err = exec.LookPath(program)
		}
	}
	need.None(t, err)
	// Not t.TempDir, which only the owner may enter, and the name of a socket has to
	// be short.
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // it is temporary
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if os.Getuid() == 0 { // as whom it refuses to run
		attr.Credential = someUser(t)
		if err := os.Chown(dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(t.Context(), filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, &syscall.SysProcAttr{Credential: attr.Credential}
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	var log bytes.Buffer
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB",
		"-c", "max_connections=60", "-c", "max_prepared_transactions=60", "-c", "log_min_messages=panic")
	server.Dir, server.SysProcAttr, server.Stdout, server.Stderr = dir, attr, &log, &log
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The kernel ties the life of the child to the thread that started it.
		runtime.LockOSThread()
		err := server.Start()
		started <- err
		if err == nil {
			_ = server.Wait() // it is told to end
			close(done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p := &postgres{dir: dir, psql: filepath.Join(bin, "psql")}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // at once, with its children
		<-done
		if t.Failed() {
			t.Logf("PostgreSQL says:\n%s", log.String())
		}
	})
	for {
		_, err := p.run("postgres", "SELECT 1")
		if err == nil {
			return p
		}
		select {
		case <-done:
			t.Fatalf("PostgreSQL ended\n%s", log.String())
		case <-t.Context().Done():
			t.Fatal(err)
		default:
		}
	}
}

// someUser is one that is not root.
func someUser(t *testing.T) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}
	}
	t.Fatal("there is no user to run PostgreSQL as")
	return nil
}

// dsn is the connection string of a database.
func (p *postgres) dsn(database string) string {
	return fmt.Sprintf("host=%s user=%s dbname=%s", p.dir, postgresUser, database)
}

// run returns the rows of a statement, a line each, with "|" between columns.
func (p *postgres) run(database, statement string) ([]string, error) {
	out, err := exec.Command(p.psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", p.dsn(database), "-c", statement).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", statement, err, out)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}

// query is run of a statement that cannot fail.
func (p *postgres) query(t *testing.T, database, statement string) []string {
	t.Helper()
	rows, err := p.run(database, statement)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}
