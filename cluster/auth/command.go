package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// maxSecretBytes bounds a file or an output that is to be a secret.
const maxSecretBytes = 1 << 20

// ReadSecretFile returns what a file holds, without one line end at its end. It
// may return *CredentialError.
func ReadSecretFile(file string) (Secret, error) {
	info, err := os.Stat(file)
	var b []byte
	switch {
	case err != nil:
	case info.Size() > maxSecretBytes:
		err = errors.New("is larger than a secret can be")
	default:
		b, err = os.ReadFile(file)
	}
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the message has the name already
		}
		return "", &CredentialError{What: "secret in " + file, Err: err}
	}
	return trimLineEnd(b), nil
}

// CommandSecret runs a program without a shell and returns what it writes to
// stdout, without one line end at its end. Its stdin is empty, and what it
// writes to stderr is dropped, since a secret may be in it. It may return
// *CredentialError, which has the name of the program and no argument.
func CommandSecret(ctx context.Context, argv []string) (Secret, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the command that the user has set
	cmd.WaitDelay = time.Second
	// Settings of kshare may be secrets, which are no other program's business.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "KSHARE_") })
	var out limitedBuffer
	cmd.Stdout = &out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && out.full:
		err = errors.New("it writes more than a secret can be")
	case err == nil && len(out.b) == 0:
		err = errors.New("it writes nothing to stdout")
	}
	if err != nil {
		var notFound *exec.Error
		if errors.As(err, &notFound) {
			err = notFound.Err // the message has the name already
		}
		return "", &CredentialError{
			What: fmt.Sprintf("secret from command %q", argv[0]), Err: err,
			Advice: "run the command by hand to see what it says; it gets no terminal here",
		}
	}
	return trimLineEnd(out.b), nil
}

// limitedBuffer keeps at most maxSecretBytes.
type limitedBuffer struct {
	b    []byte
	full bool
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.full = l.full || len(l.b)+len(p) > maxSecretBytes; !l.full {
		l.b = append(l.b, p...)
	}
	return len(p), nil
}

func trimLineEnd(b []byte) Secret {
	s := strings.TrimSuffix(string(b), "\n")
	return Secret(strings.TrimSuffix(s, "\r"))
}
